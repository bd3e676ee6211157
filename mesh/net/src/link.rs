//! One control stream at work: a task that reads, a task that writes, bounded queues between them and everybody else.
//!
//! The writer takes heartbeats first, then control messages, then bulk, and cuts long messages into parts. It also limits
//! what is under way: after every [`MARK_BYTES`] of payload it sends a marked ping, and with two marks unechoed it sends
//! heartbeats only. So a slow line (F39: 1 Mbit/s) never holds more than a quarter of a second of our bytes in socket buffers
//! ahead of a heartbeat. The price is 32 KiB a round trip: 3 MB/s at 10 ms, enough for control. Measured in two namespaces
//! with 1 Mbit/s between them, bulk both ways at full queues for 30 s: nobody held dead.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::io::{ReadHalf, WriteHalf};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use mesh_core::ids::NodeId;
use mesh_core::liveness::LinkId;
use mesh_core::ports::SendError;
use mesh_core::wire::{self, DecodeError, Message};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::frame::{Assembly, Class, FrameError, parts, push_part};

/// Control messages that wait for a link at most.
pub const CONTROL_QUEUE_MAX: usize = 1024;
/// Digests and records that wait for a link at most.
pub const BULK_QUEUE_MAX: usize = 64;
/// Bytes that wait for a link at most, both queues together. One message always fits into an empty queue.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Heartbeats that wait for a link at most.
const HEART_QUEUE_MAX: usize = 64;
/// Payload between two marked pings.
const MARK_BYTES: usize = 16 << 10;
/// Payload that may be unechoed: 0.26 s at 1 Mbit/s; four times as much made suspicions (not deaths) every second there.
const WINDOW_BYTES: usize = 2 * MARK_BYTES;
/// Set in the nonces of marked pings; the liveness core never sets it.
pub const MARK: u64 = 1 << 63;

/// What the writer sends before everything else.
pub enum Beat {
    /// An encoded hello, ping or pong.
    Frame(Vec<u8>),
    /// A marked ping came back.
    Marked(u64),
    /// An encoded goodbye: the last thing on this stream.
    Farewell(Vec<u8>),
}

/// What the reader tells the driver.
pub enum News {
    /// The first message, not decoded: it may be another version's hello.
    First(Vec<u8>),
    /// A later one.
    Heard(Message),
    /// A kind that this version does not know.
    UnknownKind,
    /// The stream is over.
    Ended {
        /// In words.
        why: String,
        /// The peer sent bytes that are no messages.
        malformed: bool,
    },
}

/// The sending end that other threads use. Never waits.
#[derive(Clone)]
pub struct Outbox {
    node: NodeId,
    control: mpsc::Sender<Vec<u8>>,
    bulk: mpsc::Sender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

impl Outbox {
    /// Queues one message.
    ///
    /// # Errors
    /// The queue is full, the message is too long to be sent at all, or the link is over.
    pub fn send(&self, message: &Message) -> Result<(), SendError> {
        let bytes = wire::encode(message).map_err(|error| {
            tracing::error!(node = %self.node, %error, "a control message cannot be sent");
            SendError::Full(self.node)
        })?;
        self.send_bytes(class_of(message), bytes)
    }

    pub(crate) fn send_bytes(&self, class: Class, bytes: Vec<u8>) -> Result<(), SendError> {
        let length = bytes.len();
        let before = self.queued_bytes.fetch_add(length, Ordering::Relaxed);
        let queue = if class == Class::Bulk { &self.bulk } else { &self.control };
        let sent = if before > 0 && before + length > QUEUE_BYTES_MAX {
            Err(SendError::Full(self.node))
        } else {
            queue.try_send(bytes).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SendError::Full(self.node),
                mpsc::error::TrySendError::Closed(_) => SendError::Unreachable(self.node),
            })
        };
        if sent.is_err() {
            self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
        }
        sent
    }
}

fn class_of(message: &Message) -> Class {
    match message {
        Message::Digest(_) | Message::Want(_) | Message::Records(_) => Class::Bulk,
        _ => Class::Control,
    }
}

/// The two tasks of a link, and its queues.
pub struct Link {
    /// Heartbeats go here.
    pub heart: mpsc::Sender<Beat>,
    /// Everything else goes here.
    pub outbox: Outbox,
    tasks: [JoinHandle<()>; 2],
}

impl Link {
    /// Starts both tasks on the current runtime. What is read goes to `beats` (hellos, pings, pongs, goodbyes) and `news`
    /// (everything else), each in order.
    pub fn start(
        id: LinkId,
        node: NodeId,
        stream: Stream,
        beats_out: mpsc::Sender<(LinkId, News)>,
        news: mpsc::Sender<(LinkId, News)>,
    ) -> Self {
        let (reader, writer) = stream.split();
        let (heart, beats) = mpsc::channel(HEART_QUEUE_MAX);
        let (control, control_queue) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (bulk, bulk_queue) = mpsc::channel(BULK_QUEUE_MAX);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let outbox = Outbox { node, control, bulk, queued_bytes: queued_bytes.clone() };
        let writer = Writer {
            stream: writer,
            beats,
            queues: [Queue::new(Class::Control, control_queue), Queue::new(Class::Bulk, bulk_queue)],
            queued_bytes,
            window: Window::default(),
            out: Vec::new(),
        };
        let tasks = [tokio::spawn(read(id, reader, beats_out, news)), tokio::spawn(writer.run())];
        Self { heart, outbox, tasks }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn read(id: LinkId, mut stream: ReadHalf<Stream>, beats: mpsc::Sender<(LinkId, News)>, news: mpsc::Sender<(LinkId, News)>) {
    let mut assembly = Assembly::default();
    let mut first = true;
    loop {
        let item = match assembly.next(&mut stream).await {
            Ok(Some(bytes)) if std::mem::take(&mut first) => News::First(bytes),
            Ok(Some(bytes)) => match wire::decode(&bytes) {
                Ok(message) => News::Heard(message),
                Err(DecodeError::UnknownKind) => News::UnknownKind,
                Err(error) => News::Ended { why: error.to_string(), malformed: true },
            },
            Ok(None) => News::Ended { why: "the other end closed the control stream".to_owned(), malformed: false },
            Err(FrameError::Ended(error)) => News::Ended { why: error.to_string(), malformed: false },
            Err(error) => News::Ended { why: error.to_string(), malformed: true },
        };
        let over = matches!(item, News::Ended { .. });
        let first_lane =
            matches!(item, News::First(_) | News::Heard(Message::Hello(_) | Message::Ping(_) | Message::Pong(_) | Message::Goodbye(_)));
        let lane = if first_lane { &beats } else { &news };
        if lane.send((id, item)).await.is_err() || over {
            return;
        }
    }
}

/// A queue and the message of it that is being sent in parts.
struct Queue {
    class: Class,
    waiting: mpsc::Receiver<Vec<u8>>,
    current: Option<(Vec<u8>, usize)>,
}

impl Queue {
    fn new(class: Class, waiting: mpsc::Receiver<Vec<u8>>) -> Self {
        Self { class, waiting, current: None }
    }

    fn begin(&mut self, message: Vec<u8>) {
        self.current = Some((message, 0));
    }
}

/// Payload that is under way.
#[derive(Default)]
struct Window {
    /// Marks whose echo is awaited, each with the payload sent since the one before.
    marks: VecDeque<(u64, usize)>,
    unmarked: usize,
    unechoed: usize,
    drawn: u64,
}

impl Window {
    fn is_open(&self) -> bool {
        self.unechoed < WINDOW_BYTES
    }

    /// Counts payload; returns a mark to be sent when one is due.
    fn sent(&mut self, bytes: usize) -> Option<u64> {
        self.unmarked += bytes;
        self.unechoed += bytes;
        (self.unmarked >= MARK_BYTES).then(|| {
            self.drawn += 1;
            let mark = MARK | self.drawn;
            self.marks.push_back((mark, std::mem::take(&mut self.unmarked)));
            mark
        })
    }

    /// An echo covers its mark and those before it. A mark that was never sent changes nothing.
    fn echoed(&mut self, mark: u64) {
        if let Some(place) = self.marks.iter().position(|(sent, _)| *sent == mark) {
            self.unechoed -= self.marks.drain(..=place).map(|(_, bytes)| bytes).sum::<usize>();
        }
    }
}

struct Writer {
    stream: WriteHalf<Stream>,
    beats: mpsc::Receiver<Beat>,
    queues: [Queue; 2],
    queued_bytes: Arc<AtomicUsize>,
    window: Window,
    out: Vec<u8>,
}

impl Writer {
    async fn run(mut self) {
        // An error here ends the connection, which the reader reports.
        if let Err(error) = self.write_all().await {
            tracing::debug!(%error, "a control stream cannot be written any more");
        }
    }

    async fn write_all(&mut self) -> std::io::Result<()> {
        loop {
            while let Ok(beat) = self.beats.try_recv() {
                if !self.beat(beat).await? {
                    return Ok(());
                }
            }
            if self.window.is_open() && self.write_part().await? {
                continue;
            }
            self.stream.flush().await?;
            let open = self.window.is_open();
            let [control, bulk] = &mut self.queues;
            tokio::select! {
                biased;
                beat = self.beats.recv() => {
                    let Some(beat) = beat else { return Ok(()) };
                    if !self.beat(beat).await? {
                        return Ok(());
                    }
                }
                Some(message) = control.waiting.recv(), if open => control.begin(message),
                Some(message) = bulk.waiting.recv(), if open => bulk.begin(message),
            }
        }
    }

    /// Whether the stream goes on.
    async fn beat(&mut self, beat: Beat) -> std::io::Result<bool> {
        match beat {
            Beat::Frame(bytes) => self.stream.write_all(&parts(Class::Heart, &bytes)).await?,
            Beat::Marked(mark) => self.window.echoed(mark),
            Beat::Farewell(bytes) => {
                self.stream.write_all(&parts(Class::Heart, &bytes)).await?;
                self.stream.flush().await?;
                self.stream.close().await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the next part of the first queue that has one. False if none has.
    async fn write_part(&mut self) -> std::io::Result<bool> {
        for queue in &mut self.queues {
            if queue.current.is_none()
                && let Ok(message) = queue.waiting.try_recv()
            {
                queue.begin(message);
            }
            let Some((message, from)) = &mut queue.current else { continue };
            self.out.clear();
            let sent_from = *from;
            *from = push_part(&mut self.out, queue.class, message, sent_from);
            let (sent, whole) = (*from - sent_from, *from == message.len());
            if whole {
                queue.current = None;
            }
            self.queued_bytes.fetch_sub(sent, Ordering::Relaxed);
            if let Some(mark) = self.window.sent(sent)
                && let Ok(ping) = wire::encode(&Message::Ping(mark))
            {
                self.out.extend(parts(Class::Heart, &ping));
            }
            self.stream.write_all(&self.out).await?;
            return Ok(true);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_opens_by_echoes_only() {
        let mut window = Window::default();
        let mut marks = Vec::new();
        while window.is_open() {
            marks.extend(window.sent(MARK_BYTES / 4));
        }
        assert_eq!((window.unechoed, marks.len()), (WINDOW_BYTES, 2));
        window.echoed(MARK | 77);
        assert!(!window.is_open());
        window.echoed(marks[1]);
        assert_eq!(window.unechoed, 0);
        window.echoed(marks[0]);
        assert!(window.is_open());
    }

    #[test]
    fn a_full_queue_says_so_and_counts_right() {
        let (control, mut waiting) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (bulk, _bulk) = mpsc::channel(BULK_QUEUE_MAX);
        let node = NodeId([1; 32]);
        let outbox = Outbox { node, control, bulk, queued_bytes: Arc::default() };
        // one long message always fits, the next one has to wait
        assert_eq!(outbox.send_bytes(Class::Control, vec![0; QUEUE_BYTES_MAX + 1]), Ok(()));
        assert_eq!(outbox.send_bytes(Class::Control, vec![0; 1]), Err(SendError::Full(node)));
        assert_eq!(outbox.queued_bytes.load(Ordering::Relaxed), QUEUE_BYTES_MAX + 1);
        let taken = waiting.try_recv().expect("queued");
        outbox.queued_bytes.fetch_sub(taken.len(), Ordering::Relaxed);
        for _ in 0..CONTROL_QUEUE_MAX {
            assert_eq!(outbox.send(&Message::Ping(1)), Ok(()));
        }
        assert_eq!(outbox.send(&Message::Ping(1)), Err(SendError::Full(node)));
        assert_eq!(outbox.send(&Message::Want(Vec::new())), Ok(()), "bulk has its own queue");
        drop(waiting);
        assert_eq!(outbox.send(&Message::Ping(1)), Err(SendError::Unreachable(node)));
    }
}
