//! One control stream at work: a task that reads, a task that writes, bounded queues between them and everybody else.
//!
//! The writer of the link in use has the node's [`Mail`]. It takes heartbeats first, then control messages, then bulk, and
//! cuts long messages into parts. It also limits what is under way: after every [`MARK_BYTES`] of payload it sends a marked
//! ping, and with two marks unechoed it sends heartbeats only. So a slow line (F39: 1 Mbit/s) never holds more than a quarter
//! of a second of our bytes in socket buffers ahead of a heartbeat. The price is 32 KiB a round trip: 3 MB/s at 10 ms, enough
//! for control. Measured in two namespaces with 1 Mbit/s between them, bulk both ways at full queues for 30 s: nobody held
//! dead. The echo of a mark also says what the other end has read, and need not be sent again if another link takes over.

use std::collections::VecDeque;

use futures::io::{ReadHalf, WriteHalf};
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::Stream;
use mesh_core::ids::NodeId;
use mesh_core::membership::LinkId;
use mesh_core::wire::{self, DecodeError, Message};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::frame::{Assembly, Class, FrameError, parts, push_part};
use crate::mail::{Mail, Stamp};

/// Heartbeats that wait for a link at most.
const HEART_QUEUE_MAX: usize = 64;
/// Payload between two marked pings.
const MARK_BYTES: u64 = 16 << 10;
/// Payload that may be unechoed: 0.26 s at 1 Mbit/s; four times as much made suspicions (not deaths) every second there.
const WINDOW_BYTES: u64 = 2 * MARK_BYTES;
/// Set in the nonces of marked pings; the membership core never sets it.
pub const MARK: u64 = 1 << 63;

/// What the writer sends before everything else.
pub enum Beat {
    /// An encoded hello, ping or pong.
    Frame(Vec<u8>),
    /// A marked ping came back.
    Marked(u64),
    /// An encoded goodbye: the last thing on this stream.
    Farewell(Vec<u8>),
    /// This link is the one in use: here is the mail.
    Mail(Box<Mail>),
    /// The same, but another link still has the mail.
    MailOf(MailBack),
}

/// What a reader reads, from which link of which node.
pub type Read = (LinkId, NodeId, News);

/// What the reader tells the driver.
pub enum News {
    /// The first message, not decoded: it may be another version's hello.
    First(Vec<u8>),
    /// A heartbeat.
    Beat(Message),
    /// Any other message.
    Heard {
        /// Control or bulk.
        class: Class,
        /// Which one.
        stamp: Stamp,
        /// The message.
        message: Message,
    },
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

/// The two tasks of a link.
pub struct Link {
    /// Heartbeats go here.
    pub heart: mpsc::Sender<Beat>,
    reader: JoinHandle<()>,
    writer: Option<JoinHandle<Option<Box<Mail>>>>,
    cancel: Option<oneshot::Sender<()>>,
}

impl Link {
    /// Starts both tasks on the current runtime. What is read goes to `beats_out` (hellos, pings, pongs, goodbyes) and `news`
    /// (everything else), each in order.
    pub fn start(id: LinkId, node: NodeId, stream: Stream, beats_out: mpsc::Sender<Read>, news: mpsc::Sender<Read>) -> Self {
        let (reader, writer) = stream.split();
        let (heart, beats) = mpsc::channel(HEART_QUEUE_MAX);
        let (cancel, cancelled) = oneshot::channel();
        let writer = Writer { stream: writer, beats, mail: None, window: Window::default(), out: Vec::new() };
        Self {
            heart,
            reader: tokio::spawn(read(id, node, reader, beats_out, news)),
            writer: Some(tokio::spawn(writer.run(cancelled))),
            cancel: Some(cancel),
        }
    }

    /// Ends the writer and gives its mail back, for another link.
    pub fn take_mail(&mut self) -> Option<MailBack> {
        drop(self.cancel.take());
        self.writer.take()
    }
}

/// A writer that was told to end: it returns the mail it had.
pub type MailBack = JoinHandle<Option<Box<Mail>>>;

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
        if let Some(writer) = &self.writer {
            writer.abort();
        }
    }
}

async fn read(id: LinkId, node: NodeId, mut stream: ReadHalf<Stream>, beats: mpsc::Sender<Read>, news: mpsc::Sender<Read>) {
    let mut assembly = Assembly::default();
    let mut first = true;
    loop {
        let item = match assembly.next(&mut stream).await {
            Ok(Some((_, bytes))) if std::mem::take(&mut first) => News::First(bytes),
            Ok(Some((class, bytes))) => decode(class, &bytes),
            Ok(None) => News::Ended { why: "the other end closed the control stream".to_owned(), malformed: false },
            Err(FrameError::Ended(error)) => News::Ended { why: error.to_string(), malformed: false },
            Err(error) => News::Ended { why: error.to_string(), malformed: true },
        };
        let over = matches!(item, News::Ended { .. });
        let lane = if matches!(item, News::First(_) | News::Beat(_)) { &beats } else { &news };
        if lane.send((id, node, item)).await.is_err() || over {
            return;
        }
    }
}

fn decode(class: Class, bytes: &[u8]) -> News {
    let (stamp, body) = match Stamp::split(bytes).filter(|_| class != Class::Heart) {
        Some((stamp, body)) => (Some(stamp), body),
        None => (None, bytes),
    };
    match (wire::decode(body), stamp) {
        (Ok(message), Some(stamp)) => News::Heard { class, stamp, message },
        (Ok(message), None) if class == Class::Heart => News::Beat(message),
        (Ok(_), None) => News::Ended { why: "a message without a stamp".to_owned(), malformed: true },
        (Err(DecodeError::UnknownKind), _) => News::UnknownKind,
        (Err(error), _) => News::Ended { why: error.to_string(), malformed: true },
    }
}

/// Payload that is under way, counted in bytes since the link began.
#[derive(Default)]
struct Window {
    sent: u64,
    marked: u64,
    echoed: u64,
    /// Marks whose echo is awaited, each with the count when it was sent.
    marks: VecDeque<(u64, u64)>,
    drawn: u64,
}

impl Window {
    fn is_open(&self) -> bool {
        self.sent - self.echoed < WINDOW_BYTES
    }

    /// Counts payload; returns a mark to be sent when one is due.
    fn sent(&mut self, bytes: usize) -> Option<u64> {
        self.sent += bytes as u64;
        (self.sent - self.marked >= MARK_BYTES).then(|| self.mark())
    }

    fn mark(&mut self) -> u64 {
        self.marked = self.sent;
        self.drawn += 1;
        let mark = MARK | self.drawn;
        self.marks.push_back((mark, self.sent));
        mark
    }

    /// An echo covers its mark and those before it. A mark that was never sent changes nothing.
    fn echoed(&mut self, mark: u64) -> Option<u64> {
        let place = self.marks.iter().position(|(sent, _)| *sent == mark)?;
        let (_, count) = self.marks.drain(..=place).next_back()?;
        self.echoed = count;
        Some(count)
    }
}

struct Writer {
    stream: WriteHalf<Stream>,
    beats: mpsc::Receiver<Beat>,
    mail: Option<Box<Mail>>,
    window: Window,
    out: Vec<u8>,
}

impl Writer {
    /// Writes until the stream fails, the link is dropped or the mail is taken away; the mail is then given back.
    async fn run(mut self, cancelled: oneshot::Receiver<()>) -> Option<Box<Mail>> {
        tokio::select! {
            // An error here ends the connection, which the reader reports.
            ended = self.write_all() => if let Err(error) = ended {
                tracing::debug!(%error, "a control stream cannot be written any more");
            },
            _ = cancelled => {}
        }
        self.mail
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
            let Some(beat) = self.rest().await else { return Ok(()) };
            if let Some(beat) = beat
                && !self.beat(beat).await?
            {
                return Ok(());
            }
        }
    }

    /// Waits for the next heartbeat or message. The outer `None` = the link is dropped.
    async fn rest(&mut self) -> Option<Option<Beat>> {
        let open = self.window.is_open();
        let Some(mail) = self.mail.as_mut().filter(|_| open) else { return self.beats.recv().await.map(Some) };
        let [control, bulk] = &mut mail.queues;
        let (queue, message) = tokio::select! {
            biased;
            beat = self.beats.recv() => return beat.map(Some),
            Some(message) = control.waiting.recv() => (0, message),
            Some(message) = bulk.waiting.recv() => (1, message),
            else => return None,
        };
        mail.begin(queue, &message);
        Some(None)
    }

    /// Whether the stream goes on.
    async fn beat(&mut self, beat: Beat) -> std::io::Result<bool> {
        match beat {
            Beat::Frame(bytes) => {
                self.stream.write_all(&parts(Class::Heart, &bytes)).await?;
                // A tail that no mark covers yet is marked with the next heartbeat: its messages are kept until then.
                if self.window.marked < self.window.sent {
                    let mark = self.window.mark();
                    self.write_ping(mark).await?;
                }
            }
            Beat::Marked(mark) => {
                if let (Some(count), Some(mail)) = (self.window.echoed(mark), &mut self.mail) {
                    mail.echoed(count);
                }
            }
            Beat::Mail(mail) => self.mail = Some(mail),
            Beat::MailOf(back) => {
                self.mail = back.await.ok().flatten();
                if let Some(mail) = &mut self.mail {
                    mail.rewind();
                }
            }
            Beat::Farewell(bytes) => {
                self.stream.write_all(&parts(Class::Heart, &bytes)).await?;
                self.stream.flush().await?;
                self.stream.close().await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn write_ping(&mut self, nonce: u64) -> std::io::Result<()> {
        match wire::encode(&Message::Ping(nonce)) {
            Ok(ping) => self.stream.write_all(&parts(Class::Heart, &ping)).await,
            Err(_) => Ok(()), // a ping is never too long
        }
    }

    /// Writes the next part of the first queue that has one. False if none has.
    async fn write_part(&mut self) -> std::io::Result<bool> {
        let Some(queue) = self.mail.as_mut().and_then(|mail| mail.next()) else { return Ok(false) };
        let Some((message, from)) = &mut queue.current else { return Ok(false) };
        self.out.clear();
        let end = push_part(&mut self.out, queue.class, message, *from);
        let (sent, whole) = (end - *from, end == message.len());
        *from = end;
        let mark = self.window.sent(sent);
        if whole {
            queue.written(self.window.sent);
        }
        self.stream.write_all(&self.out).await?;
        if let Some(mark) = mark {
            self.write_ping(mark).await?;
        }
        Ok(true)
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
            marks.extend(window.sent(MARK_BYTES as usize / 4));
        }
        assert_eq!((window.sent, marks.len()), (WINDOW_BYTES, 2));
        assert_eq!(window.echoed(MARK | 77), None);
        assert!(!window.is_open());
        assert_eq!(window.echoed(marks[1]), Some(WINDOW_BYTES));
        assert_eq!(window.echoed(marks[0]), None);
        assert!(window.is_open());
    }
}
