//! Messages on their way to one life of a node. They belong to the life, not to a link: when another link takes over, the
//! mail moves to it, and what may not have arrived is sent again.
//!
//! Each message carries a stamp: the mail's epoch (drawn when the node came up) and its number within its class. The
//! receiver drops what it has seen, so a message arrives at most once; between an up and a down it arrives exactly once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mesh_core::ids::NodeId;
use mesh_core::ports::SendError;
use mesh_core::wire::{self, MESSAGE_BYTES_MAX, Message};
use tokio::sync::mpsc;

use crate::frame::Class;

/// Control messages that wait for a node at most.
pub const CONTROL_QUEUE_MAX: usize = 1024;
/// Digests and records that wait for a node at most.
pub const BULK_QUEUE_MAX: usize = 64;
/// Bytes that wait for a node at most, both queues together. One message always fits into an empty queue.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Bytes of a [`Stamp`] at the front of a message.
pub const STAMP_BYTES: usize = 12;

/// Which message this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Of which mail.
    pub epoch: u32,
    /// Counts the messages of a class.
    pub number: u64,
}

impl Stamp {
    fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The stamp of a message and what follows it.
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (epoch, rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        Some((Self { epoch: u32::from_le_bytes(*epoch), number: u64::from_le_bytes(*number) }, rest))
    }
}

/// What came from one node so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    epoch: Option<u32>,
    next: [u64; 3],
}

impl Received {
    /// Whether a message is new. Saying yes counts it.
    pub fn is_new(&mut self, class: Class, stamp: Stamp) -> bool {
        if self.epoch != Some(stamp.epoch) {
            *self = Self { epoch: Some(stamp.epoch), next: [0; 3] };
        }
        let next = &mut self.next[class as usize];
        let new = stamp.number >= *next;
        if new {
            *next = stamp.number.saturating_add(1);
        }
        new
    }
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
    /// The queue is full, the message is too long to be sent at all, or the node is down.
    pub fn send(&self, message: &Message) -> Result<(), SendError> {
        match wire::encode(message) {
            Ok(bytes) if bytes.len() + STAMP_BYTES <= MESSAGE_BYTES_MAX => self.send_bytes(class_of(message), bytes),
            _ => {
                tracing::error!(node = %self.node, "a control message is too long to be sent");
                Err(SendError::Full(self.node))
            }
        }
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
        Message::Digest(_) | Message::Summary(_) | Message::Want(_) | Message::Records(_) => Class::Bulk,
        _ => Class::Control,
    }
}

/// A queue, the message of it that is being sent in parts, and those that were sent and may not have arrived.
pub struct Queue {
    /// Of what.
    pub class: Class,
    /// From the outbox.
    pub waiting: mpsc::Receiver<Vec<u8>>,
    /// Stamped message, and how much of it is written.
    pub current: Option<(Arc<[u8]>, usize)>,
    again: VecDeque<Arc<[u8]>>,
    /// Written on this link; each with the link's payload count at its end.
    unechoed: VecDeque<(u64, Arc<[u8]>)>,
    numbered: u64,
}

/// See the module's head.
pub struct Mail {
    /// Control before bulk.
    pub queues: [Queue; 2],
    queued_bytes: Arc<AtomicUsize>,
    epoch: u32,
}

impl Mail {
    /// Fresh mail for a node that came up, and the outbox that fills it.
    pub fn new(node: NodeId, epoch: u32) -> (Outbox, Self) {
        let (control, control_queue) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (bulk, bulk_queue) = mpsc::channel(BULK_QUEUE_MAX);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let queue =
            |class, waiting| Queue { class, waiting, current: None, again: VecDeque::new(), unechoed: VecDeque::new(), numbered: 0 };
        let queues = [queue(Class::Control, control_queue), queue(Class::Bulk, bulk_queue)];
        (Outbox { node, control, bulk, queued_bytes: queued_bytes.clone() }, Self { queues, queued_bytes, epoch })
    }

    /// Stamps a message that came out of a queue and makes it the one to be written.
    pub fn begin(&mut self, queue: usize, message: &[u8]) {
        self.queued_bytes.fetch_sub(message.len(), Ordering::Relaxed);
        let queue = &mut self.queues[queue];
        let stamp = Stamp { epoch: self.epoch, number: queue.numbered };
        queue.numbered += 1;
        queue.current = Some(([&stamp.to_bytes(), message].concat().into(), 0));
    }

    /// The first queue that has something to write, with its message begun.
    pub fn next(&mut self) -> Option<&mut Queue> {
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            if queue.current.is_none() {
                if let Some(message) = queue.again.pop_front() {
                    queue.current = Some((message, 0));
                } else if let Ok(message) = queue.waiting.try_recv() {
                    self.begin(index, &message);
                }
            }
            if self.queues[index].current.is_some() {
                return Some(&mut self.queues[index]);
            }
        }
        None
    }

    /// Everything up to this payload count of the link was read by the other end.
    pub fn echoed(&mut self, count: u64) {
        for queue in &mut self.queues {
            while queue.unechoed.front().is_some_and(|(end, _)| *end <= count) {
                queue.unechoed.pop_front();
            }
        }
    }

    /// For another link: what may not have arrived is sent again, in order, then the rest.
    pub fn rewind(&mut self) {
        for queue in &mut self.queues {
            if let Some((message, _)) = queue.current.take() {
                queue.again.push_front(message);
            }
            while let Some((_, message)) = queue.unechoed.pop_back() {
                queue.again.push_front(message);
            }
        }
    }
}

impl Queue {
    /// The current message is written whole, at this payload count of the link.
    pub fn written(&mut self, count: u64) {
        if let Some((message, _)) = self.current.take() {
            self.unechoed.push_back((count, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId([1; 32]);

    /// Writes one message whole; returns its class and number.
    fn write(mail: &mut Mail, count: u64) -> Option<(Class, u64)> {
        let queue = mail.next()?;
        let (stamp, _) = Stamp::split(&queue.current.as_ref()?.0)?;
        let class = queue.class;
        queue.written(count);
        Some((class, stamp.number))
    }

    #[test]
    fn a_full_queue_says_so_and_counts_right() {
        let (outbox, mut mail) = Mail::new(NODE, 1);
        // one long message always fits, the next one has to wait
        assert_eq!(outbox.send_bytes(Class::Control, vec![0; QUEUE_BYTES_MAX + 1]), Ok(()));
        assert_eq!(outbox.send_bytes(Class::Control, vec![0; 1]), Err(SendError::Full(NODE)));
        assert_eq!(outbox.queued_bytes.load(Ordering::Relaxed), QUEUE_BYTES_MAX + 1);
        assert!(write(&mut mail, 1).is_some());
        assert_eq!(outbox.queued_bytes.load(Ordering::Relaxed), 0);
        for _ in 0..CONTROL_QUEUE_MAX {
            assert_eq!(outbox.send(&Message::Ping(1)), Ok(()));
        }
        assert_eq!(outbox.send(&Message::Ping(1)), Err(SendError::Full(NODE)));
        assert_eq!(outbox.send(&Message::Want(Vec::new())), Ok(()), "bulk has its own queue");
        drop(mail);
        assert_eq!(outbox.send(&Message::Ping(1)), Err(SendError::Unreachable(NODE)));
    }

    #[test]
    fn what_was_not_echoed_is_sent_again_in_order_and_dropped_if_seen() {
        let (outbox, mut mail) = Mail::new(NODE, 7);
        (0..4).for_each(|_| outbox.send(&Message::Ping(1)).expect("room"));
        outbox.send(&Message::Want(Vec::new())).expect("room");
        let sent: Vec<_> = (1..=3).filter_map(|count| write(&mut mail, count)).collect();
        assert_eq!(sent, [(Class::Control, 0), (Class::Control, 1), (Class::Control, 2)]);
        mail.next().expect("the fourth").current.as_mut().expect("begun").1 = 1; // half written
        mail.echoed(1);
        mail.rewind();
        let again: Vec<_> = (1..=9).map_while(|count| write(&mut mail, count)).collect();
        assert_eq!(again, [(Class::Control, 1), (Class::Control, 2), (Class::Control, 3), (Class::Bulk, 0)]);
        let mut received = Received::default();
        let mut new = |(class, number)| received.is_new(class, Stamp { epoch: 7, number });
        assert!(sent.into_iter().all(&mut new));
        assert_eq!(again.into_iter().map(new).collect::<Vec<_>>(), [false, false, true, true]);
        assert!(received.is_new(Class::Control, Stamp { epoch: 8, number: 0 }), "fresh mail begins anew");
    }
}
