//! A machine in the middle: passes bytes between a sender and a receiver, and may listen, change, repeat or stop.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Sender to receiver.
    Forth,
    /// Receiver to sender.
    Back,
}

/// What the middle does with the bytes of one way: changes them in place; false = passes nothing any more.
pub type Meddle = dyn FnMut(Way, &mut Vec<u8>) -> bool + Send;

/// Listens on loopback and passes every connection on to `target`.
pub struct Relay {
    pub address: SocketAddr,
    meddle: Arc<Mutex<Box<Meddle>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    pub fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let meddle: Arc<Mutex<Box<Meddle>>> = Arc::new(Mutex::new(Box::new(|_, _| true)));
        let open = Arc::new(Mutex::new(Vec::new()));
        let (shared, all) = (Arc::clone(&meddle), Arc::clone(&open));
        // Runs until the test's process ends; it holds nothing but the socket.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                for (way, from, to) in [(Way::Forth, &near, &far), (Way::Back, &far, &near)] {
                    let (from, to) = (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || pass(way, from, to, &shared));
                }
                all.lock().expect("no panic inside").extend([near, far]);
            }
        });
        Self { address, meddle, open }
    }

    /// From now on, this is done to what passes.
    pub fn meddle(&self, meddle: impl FnMut(Way, &mut Vec<u8>) -> bool + Send + 'static) {
        *self.meddle.lock().expect("no panic inside") = Box::new(meddle);
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        for socket in self.open.lock().expect("no panic inside").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn pass(way: Way, mut from: TcpStream, mut to: TcpStream, meddle: &Mutex<Box<Meddle>>) {
    let mut buffer = vec![0; 64 << 10];
    let mut passes = true;
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let mut passing = buffer[..bytes].to_vec();
        passes = (meddle.lock().expect("no panic inside"))(way, &mut passing);
        if passes && to.write_all(&passing).is_err() {
            break;
        }
    }
    if passes {
        let _ = to.shutdown(Shutdown::Write); // an end passes like any byte
    }
}

/// Asks until there is an answer; for what no waker tells of.
pub fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + super::PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(std::time::Instant::now() < deadline, "waited too long");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
