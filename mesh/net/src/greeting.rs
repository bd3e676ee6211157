//! The first message on a link: who is there, and whether we go on.

use mesh_core::ids::NodeId;
use mesh_core::records::NodeRecord;
use mesh_core::wire::{self, Hello, Message};

/// What the first message was.
#[derive(Debug, PartialEq)]
pub enum First {
    /// A hello that we accept.
    Hello(Box<NodeRecord>),
    /// The other side refused us before it read our hello.
    Goodbye(String),
    /// Not acceptable; to be told to the other side and to our operator.
    Refuse {
        /// For the other side.
        theirs: String,
        /// For us.
        ours: String,
    },
    /// No hello at all.
    Malformed(String),
}

/// What we say and expect.
#[derive(Clone, Debug)]
pub struct Greeting {
    /// Version of the protocol.
    pub protocol: u32,
    /// Version of the program, for people.
    pub program: String,
    /// Name of the mesh.
    pub mesh: String,
}

impl Greeting {
    /// Our hello.
    pub fn hello(&self, me: NodeRecord) -> Message {
        let (protocol, program, mesh) = (self.protocol, self.program.clone(), self.mesh.clone());
        Message::Hello(Box::new(Hello { protocol, program, mesh, me }))
    }

    /// Judges the first message of the node that the handshake proved to be `node`.
    pub fn judge(&self, node: NodeId, bytes: &[u8]) -> First {
        match wire::decode::<Message>(bytes) {
            Ok(Message::Hello(hello)) => self.judge_hello(node, *hello),
            Ok(Message::Goodbye(text)) => First::Goodbye(text),
            Ok(_) => First::Malformed("its first message was no hello".to_owned()),
            // Another version's hello may have other fields; that it is one, and which, stands at its front in all versions.
            Err(error) => match version_of(bytes) {
                Some(protocol) if protocol != self.protocol => self.other_version(node, protocol, "another version"),
                _ => First::Malformed(error.to_string()),
            },
        }
    }

    fn judge_hello(&self, node: NodeId, hello: Hello) -> First {
        if hello.protocol != self.protocol {
            return self.other_version(node, hello.protocol, &hello.program);
        }
        if hello.mesh != self.mesh {
            return First::Refuse {
                theirs: format!("this is mesh \"{}\", you belong to mesh \"{}\"", self.mesh, hello.mesh),
                ours: format!(
                    "it belongs to mesh \"{}\", this node to mesh \"{}\": join one of them with its token",
                    hello.mesh, self.mesh
                ),
            };
        }
        if hello.me.node != node {
            return First::Refuse {
                theirs: "your record names another node than your key proves".to_owned(),
                ours: format!(
                    "its record names node {} and its key proves {}: it is broken or hostile",
                    hello.me.node.short(),
                    node.short()
                ),
            };
        }
        First::Hello(Box::new(hello.me))
    }

    fn other_version(&self, node: NodeId, protocol: u32, program: &str) -> First {
        let (ours, mine) = (self.protocol, &self.program);
        First::Refuse {
            theirs: format!(
                "you speak protocol {protocol} ({program}), this node speaks {ours} ({mine}): install the same version of mesh on both"
            ),
            ours: format!(
                "node {} speaks protocol {protocol} ({program}), this node speaks {ours} ({mine}): install the same version of mesh on both",
                node.short()
            ),
        }
    }
}

/// The protocol version in a hello of any version: variant 0, then a bincode variable-length integer.
fn version_of(bytes: &[u8]) -> Option<u32> {
    match bytes {
        [0, small @ 0..=250, ..] => Some(u32::from(*small)),
        [0, 251, low, high, ..] => Some(u32::from(u16::from_le_bytes([*low, *high]))),
        [0, 252, a, b, c, d, ..] => Some(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mesh_core::ids::BootId;
    use mesh_core::lifetimes::Wall;
    use mesh_core::records::{Capacity, NodeState};

    use super::*;

    /// A record to greet with.
    pub fn record(node: NodeId, boot: u128) -> NodeRecord {
        NodeRecord {
            node,
            name: "test".to_owned(),
            boot: BootId(boot),
            incarnation: 1,
            version: 0,
            state: NodeState::Up,
            alive: Wall::default(),
            in_touch: None,
            capacity: Capacity::default(),
            numerics_class: 0,
            addresses: Vec::new(),
            models: Vec::new(),
            shards: Vec::new(),
            interfaces: Vec::new(),
            paths: Vec::new(),
        }
    }

    fn greeting(protocol: u32, mesh: &str) -> Greeting {
        Greeting { protocol, program: format!("mesh 0.{protocol}"), mesh: mesh.to_owned() }
    }

    #[test]
    fn hellos_are_accepted_or_refused_in_words() {
        let (me, node) = (greeting(1, "home"), NodeId([2; 32]));
        let says = |other: Greeting, claimed: NodeId| me.judge(node, &wire::encode(&other.hello(record(claimed, 7))).expect("short"));
        assert_eq!(says(greeting(1, "home"), node), First::Hello(Box::new(record(node, 7))));
        let First::Refuse { theirs, ours } = says(greeting(300, "home"), node) else { panic!("accepted") };
        assert!(theirs.contains("300") && theirs.contains("speaks 1"), "{theirs}");
        assert!(ours.contains("300") && ours.contains("speaks 1"), "{ours}");
        let First::Refuse { ours, .. } = says(greeting(1, "work"), node) else { panic!("accepted") };
        assert!(ours.contains("work") && ours.contains("home"), "{ours}");
        assert!(matches!(says(greeting(1, "home"), NodeId([3; 32])), First::Refuse { .. }));
    }

    #[test]
    fn a_hello_of_the_future_is_refused_by_version_not_as_garbage() {
        let me = greeting(1, "home");
        for (bytes, version) in [(vec![0, 2, 9, 9, 9], 2_u32), (vec![0, 251, 44, 1, 0xff], 300), (vec![0, 252, 0, 0, 1, 0], 65_536)] {
            let First::Refuse { ours, .. } = me.judge(NodeId([2; 32]), &bytes) else { panic!("not refused: {bytes:?}") };
            assert!(ours.contains(&version.to_string()), "{ours}");
        }
        assert!(matches!(me.judge(NodeId([2; 32]), &[0, 1]), First::Malformed(_)));
        assert!(matches!(me.judge(NodeId([2; 32]), b"GET / HTTP/1.1"), First::Malformed(_)));
        assert!(matches!(me.judge(NodeId([2; 32]), &wire::encode(&Message::Ping(1)).expect("short")), First::Malformed(_)));
        assert_eq!(me.judge(NodeId([2; 32]), &wire::encode(&Message::Goodbye("no".into())).expect("short")), First::Goodbye("no".into()));
    }

    proptest::proptest! {
        #[test]
        fn no_first_message_panics(bytes in proptest::collection::vec(0_u8.., 0..300)) {
            let _ = greeting(1, "home").judge(NodeId([2; 32]), &bytes);
        }
    }
}
