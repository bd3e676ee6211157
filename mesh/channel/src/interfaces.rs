#![expect(unsafe_code, reason = "getifaddrs hands out a linked list of C structures; std has no other way to list addresses")]
//! The addresses of this machine: where lanes listen, and from where they connect.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The system's name for it, for people.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// Leading bits that all addresses on this network share.
    pub prefix: u8,
    /// The system's number of the interface: which link a link-local IPv6 address is on. 0 = none.
    pub index: u32,
}

impl Interface {
    /// 127.0.0.1.
    #[must_use]
    pub fn loopback() -> Self {
        Self { name: "loopback".into(), address: IpAddr::V4(Ipv4Addr::LOCALHOST), prefix: 8, index: 0 }
    }

    /// Every address of every interface that is up.
    ///
    /// # Errors
    /// The operating system does not tell.
    pub fn list() -> io::Result<Vec<Self>> {
        let mut first = std::ptr::null_mut();
        // SAFETY: `first` is a place for one pointer.
        if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut all = Vec::new();
        let mut next = first;
        // SAFETY: `next` is null or an entry of the list, which stays until `freeifaddrs`.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            if entry.ifa_flags & (libc::IFF_UP as libc::c_uint) != 0 {
                all.extend(read(entry));
            }
        }
        // SAFETY: `first` came from `getifaddrs` and is freed once; nothing of it is referred to any more.
        unsafe { libc::freeifaddrs(first) };
        Ok(all)
    }

    /// This interface's own socket address with a port.
    pub(crate) fn socket_address(&self, port: u16) -> SocketAddr {
        scoped(self.address, port, self.index)
    }

    /// Whether `other` is on the same network, so that this address is the one to speak to it from.
    pub(crate) fn shares_network(&self, other: IpAddr) -> bool {
        let alike = |ours: u128, theirs: u128, width: u32| {
            let rest = width.saturating_sub(u32::from(self.prefix));
            rest >= 128 || ours >> rest == theirs >> rest
        };
        match (self.address, other) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => alike(ours.to_bits().into(), theirs.to_bits().into(), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => alike(ours.to_bits(), theirs.to_bits(), 128),
            _ => false,
        }
    }
}

/// An address with a port, and for link-local IPv6 with the link.
pub(crate) fn scoped(address: IpAddr, port: u16, index: u32) -> SocketAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddr::V6(SocketAddrV6::new(v6, port, 0, index)),
        _ => SocketAddr::new(address, port),
    }
}

/// Whether an address means something on one link only.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn read(entry: &libc::ifaddrs) -> Option<Interface> {
    let address = ip(entry.ifa_addr)?;
    let prefix = match ip(entry.ifa_netmask) {
        Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
        None => {
            if address.is_ipv4() {
                32
            } else {
                128
            }
        }
    };
    // SAFETY: `ifa_name` is a string that ends in zero and lives as long as the entry.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    // SAFETY: as above.
    let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
    Some(Interface { name: name.to_string_lossy().into_owned(), address, prefix: u8::try_from(prefix).ok()?, index })
}

/// The IP address in a C socket address, if it is one.
fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or a socket address that is at least as long as its family says, in a live list entry.
    match i32::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is an IPv4 address; read unaligned, since nobody promises more.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is an IPv6 address; read unaligned, since nobody promises more.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let mut bytes = v6.sin6_addr.s6_addr;
            if Ipv6Addr::from(bytes).is_unicast_link_local() {
                bytes[2..4].fill(0); // BSD kernels keep the interface's number here
            }
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str, prefix: u8) -> Interface {
        Interface { name: "x".into(), address: address.parse().expect("an address"), prefix, index: 3 }
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        let all = Interface::list().expect("the system tells");
        let loopback = all.iter().find(|one| one.address == IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("127.0.0.1 is up");
        assert_eq!((loopback.prefix, loopback.index > 0), (8, true));
    }

    #[test]
    fn networks_are_told_apart() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(of("169.254.7.1", 16).shares_network(ip("169.254.200.9")));
        assert!(!of("10.0.1.1", 24).shares_network(ip("10.0.2.1")));
        assert!(!of("10.0.1.1", 32).shares_network(ip("10.0.1.2")));
        assert!(of("10.0.1.1", 0).shares_network(ip("8.8.8.8")));
        assert!(of("fe80::1", 64).shares_network(ip("fe80::2")));
        assert!(of("fe80::1", 0).shares_network(ip("2001::2")));
        assert!(!of("10.0.1.1", 0).shares_network(ip("fe80::2")));
    }

    #[test]
    fn only_link_local_addresses_carry_their_link() {
        assert_eq!(of("fe80::1", 64).socket_address(5).to_string(), "[fe80::1%3]:5");
        assert_eq!(of("2001::1", 64).socket_address(5).to_string(), "[2001::1]:5");
        assert_eq!(of("10.0.0.1", 8).socket_address(5).to_string(), "10.0.0.1:5");
    }
}
