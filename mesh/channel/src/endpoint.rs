//! How an offer names the ways to a receiver: `local:ID`, `tcp:ADDRESS:PORT`, and `tcp:ADDRESS:PORT via NAME` on a link that
//! both nodes agreed on, NAME being the sender's interface.

use std::net::SocketAddr;

use mesh_core::links::NAME_BYTES_MAX;
use mesh_core::wire::LaneOffer;

use crate::arena::check_shape;

/// Endpoints in an offer at most.
pub const ENDPOINTS_MAX: usize = 32;
/// Bytes of one endpoint at most.
pub const ENDPOINT_BYTES_MAX: usize = 128;

/// One way to a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Channels in the same process, by their random name.
    Local(u128),
    /// A listening socket.
    Tcp(Target),
}

/// A listening socket, and how to get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The sender's interface on the link that was agreed on.
    pub(crate) via: Option<String>,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(id) => write!(f, "local:{id:032x}"),
            Self::Tcp(Target { address, via: None }) => write!(f, "tcp:{address}"),
            Self::Tcp(Target { address, via: Some(via) }) => write!(f, "tcp:{address} via {via}"),
        }
    }
}

/// The endpoints of an offer that we know how to use. Other carriers' ones are left out: a newer peer may name them.
///
/// # Errors
/// In words what makes no sense. Nothing of the offer's sizes was allocated.
pub(crate) fn read(offer: &LaneOffer) -> Result<Vec<Endpoint>, String> {
    check_shape(mesh_core::ports::LaneShape { slot_bytes: offer.slot_bytes, slots: offer.slots })?;
    if offer.endpoints.len() > ENDPOINTS_MAX {
        return Err(format!("{} endpoints; at most {ENDPOINTS_MAX} are possible", offer.endpoints.len()));
    }
    let mut known = Vec::new();
    for text in &offer.endpoints {
        if text.len() > ENDPOINT_BYTES_MAX {
            return Err(format!("an endpoint of {} bytes; at most {ENDPOINT_BYTES_MAX} are possible", text.len()));
        }
        let bad = || format!("endpoint {text:?} cannot be read");
        match text.split_once(':').ok_or_else(bad)? {
            ("tcp", rest) => {
                let (address, via) = match rest.split_once(" via ") {
                    Some((_, via)) if via.is_empty() || via.len() > NAME_BYTES_MAX => return Err(bad()),
                    Some((address, via)) => (address, Some(via.to_owned())),
                    None => (rest, None),
                };
                let address: SocketAddr = address.parse().map_err(|_| bad())?;
                if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
                    return Err(format!("endpoint {text:?} is no address to connect to"));
                }
                known.push(Endpoint::Tcp(Target { address, via }));
            }
            ("local", id) if id.len() == 32 => known.push(Endpoint::Local(u128::from_str_radix(id, 16).map_err(|_| bad())?)),
            ("local", _) => return Err(bad()),
            _ => {}
        }
    }
    if known.is_empty() {
        return Err("no endpoint that this version can use; update the older of the two nodes, or check its interfaces".into());
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use mesh_core::ids::{DeploymentId, PlanHash};
    use mesh_core::wire::LaneId;
    use proptest::prelude::*;

    use super::*;

    fn offer(endpoints: &[&str]) -> LaneOffer {
        LaneOffer {
            lane: LaneId { deployment: DeploymentId(1), plan: PlanHash(2), boundary: 0 },
            generation: 1,
            endpoints: endpoints.iter().map(|&text| text.to_owned()).collect(),
            secret: [0; 32],
            slot_bytes: 4096,
            slots: 2,
        }
    }

    #[test]
    fn endpoints_are_read_as_they_are_written() {
        let texts = ["local:000000000000000000000000000000ff", "tcp:10.0.0.1:80", "tcp:[fe80::1]:9 via en5"];
        let read = read(&offer(&texts)).expect("sound");
        assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>(), texts);
    }

    #[test]
    fn unknown_carriers_are_left_out() {
        assert_eq!(read(&offer(&["rdma:mlx5_0:1", "tcp:10.0.0.1:80"])).map(|all| all.len()), Ok(1));
        assert!(read(&offer(&["rdma:mlx5_0:1"])).is_err());
    }

    #[test]
    fn hostile_endpoints_are_refused() {
        let long = "tcp:".to_owned() + &"9".repeat(500);
        for text in [
            "",
            "tcp",
            "tcp:",
            "tcp:host:80",
            "tcp:1.2.3.4",
            "tcp:1.2.3.4:0",
            "tcp:0.0.0.0:5",
            "tcp:224.0.0.1:5",
            "tcp:10.0.0.1:5 via ",
            "tcp:10.0.0.1:5 via an-interface-with-a-name-that-no-system-allows",
            "tcp: via en0",
            "local:",
            "local:xyz",
            &long,
        ] {
            assert!(read(&offer(&[text])).is_err(), "{text}");
        }
        assert!(read(&offer(&["tcp:10.0.0.1:80"; ENDPOINTS_MAX + 1])).is_err());
        assert!(read(&offer(&[])).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read(text in "\\PC{0,140}") {
            let _ = read(&offer(&[&text]));
            let _ = read(&offer(&[&format!("tcp:{text}")]));
            let _ = read(&offer(&[&format!("tcp:10.0.0.1:80 via {text}")]));
            let _ = read(&offer(&[&format!("local:{text}")]));
        }
    }
}
