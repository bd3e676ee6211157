//! Speaks up on multicast DNS without being asked (RFC 6762, section 8.3).
//!
//! libp2p's multicast DNS only answers what it hears. A machine whose firewall drops incoming multicast would hear no
//! question and no answer, and nobody would know of it (F13). So every node also says by itself, every few seconds, what it
//! would answer: one direction is enough, since whoever hears dials. The packet is the answer that libp2p's own parser takes:
//! a PTR record for `_p2p._udp.local` and a TXT record for each address. About 300 bytes for each interface and announcement.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};

use crate::interfaces::address_at;
use crate::key::peer_of;
use crate::net::Shared;

const GROUP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251)), 5353);
const SERVICE: &[&str] = &["_p2p", "_udp", "local"];
/// What is said holds so long: as long as libp2p's answers of ours.
const TTL_S: u32 = 120;
/// Between announcements: whoever comes is known within ten seconds, a lost packet included for most (guess).
const EVERY: Duration = Duration::from_secs(4);
/// Addresses that are spoken from at most.
const ADDRESSES_MAX: usize = 64;
/// A TXT string's length is one byte.
const TEXT_BYTES_MAX: usize = 255;

/// Announces until it is dropped.
pub async fn announce(shared: Arc<Shared>) {
    let Some(peer) = peer_of(shared.me) else { return };
    loop {
        let bound = shared.bound.get().map_or(&[][..], Vec::as_slice);
        for ip in shared.lister.dialable().into_iter().take(ADDRESSES_MAX) {
            let IpAddr::V4(ip) = ip else { continue };
            let reachable = bound.iter().filter(|socket| socket.ip() == ip || socket.ip() == Ipv4Addr::UNSPECIFIED);
            let addresses: Vec<Multiaddr> = reachable.map(|socket| address_at(ip.into(), socket.port())).collect();
            if !addresses.is_empty()
                && let Err(error) = say(ip, &packet(peer, &addresses))
            {
                tracing::debug!(%ip, %error, "not announced");
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Sends on the interface that has this address. Sending a datagram does not wait for anybody.
fn say(from: Ipv4Addr, packet: &[u8]) -> std::io::Result<()> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_nonblocking(true)?;
    socket.set_multicast_ttl_v4(255)?;
    socket.send_to(packet, GROUP).map(drop)
}

/// A multicast DNS answer that nobody asked for.
fn packet(peer: PeerId, addresses: &[Multiaddr]) -> Vec<u8> {
    let peer = peer.to_base58();
    let name = [&peer[peer.len().saturating_sub(32)..]]; // any name of at most 63 bytes that is ours alone
    let texts = addresses.iter().map(|address| format!("dnsaddr={address}/p2p/{peer}"));
    let texts: Vec<String> = texts.filter(|text| text.len() <= TEXT_BYTES_MAX).collect();
    let mut out = vec![0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0]; // id 0, an answer; no question, one answer, no authority
    out.extend_from_slice(&u16::try_from(texts.len()).unwrap_or(0).to_be_bytes());
    push_name(&mut out, SERVICE);
    push_head(&mut out, 12, 1); // PTR
    push_data(&mut out, |data| push_name(data, &name));
    for text in &texts {
        push_name(&mut out, &name);
        push_head(&mut out, 16, 0x8001); // TXT, replacing what was said before
        push_data(&mut out, |data| push_text(data, text));
    }
    out
}

fn push_head(out: &mut Vec<u8>, kind: u16, class: u16) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&class.to_be_bytes());
    out.extend_from_slice(&TTL_S.to_be_bytes());
}

fn push_data(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut data = Vec::new();
    write(&mut data);
    out.extend_from_slice(&u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(&data);
}

fn push_name(out: &mut Vec<u8>, labels: &[&str]) {
    labels.iter().for_each(|label| push_text(out, label));
    out.push(0);
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(TEXT_BYTES_MAX)];
    out.push(u8::try_from(bytes.len()).unwrap_or(0));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packet_is_what_the_rfc_says() {
        let peer: PeerId = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo".parse().expect("a peer id");
        let bytes = packet(peer, &["/ip4/10.0.0.1/tcp/7".parse().expect("an address")]);
        assert_eq!(bytes[..12], [0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(&bytes[12..29], b"\x04_p2p\x04_udp\x05local\0");
        assert_eq!(bytes[29..37], [0, 12, 0, 1, 0, 0, 0, 120]);
        let name_len = usize::from(u16::from_be_bytes([bytes[37], bytes[38]]));
        let (pointer, rest) = bytes[39..].split_at(name_len);
        assert_eq!(name_len, 34);
        assert_eq!(&rest[..name_len], pointer, "the TXT record has the name that the PTR record points to");
        assert_eq!(rest[name_len..name_len + 8], [0, 16, 0x80, 1, 0, 0, 0, 120]);
        let text = String::from_utf8_lossy(&rest[name_len + 11..]);
        assert_eq!(text, format!("dnsaddr=/ip4/10.0.0.1/tcp/7/p2p/{peer}"));
    }
}
