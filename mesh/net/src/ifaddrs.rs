#![expect(unsafe_code, reason = "getifaddrs is a C function that returns a linked list")]
//! The kernel's list of interface addresses, as owned values. Decides nothing.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface, with the interface's flags (`IFF_*`).
pub struct Raw {
    pub name: String,
    pub flags: u32,
    pub address: IpAddr,
    /// Leading bits that all addresses of its network share.
    pub prefix: u8,
    /// The kernel's number of the interface; 0 = none.
    pub index: u32,
}

/// Every IPv4 and IPv6 address of this machine; empty if the kernel refuses.
pub fn list() -> Vec<Raw> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `head` is ours and writable. On success it points to a list that stays valid until `freeifaddrs`.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut entry = head;
    while !entry.is_null() {
        // SAFETY: `entry` is a non-null element of the list, which is freed below only; nobody writes to it.
        let item = unsafe { &*entry };
        if let Some(address) = address_of(item.ifa_addr) {
            // SAFETY: `ifa_name` of an element is a NUL-terminated string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(item.ifa_name) };
            // SAFETY: as above.
            let index = unsafe { libc::if_nametoindex(item.ifa_name) };
            let prefix = prefix_of(address, address_of(item.ifa_netmask));
            found.push(Raw { name: name.to_string_lossy().into_owned(), flags: item.ifa_flags, address, prefix, index });
        }
        entry = item.ifa_next;
    }
    // SAFETY: `head` came from `getifaddrs`, is freed once, and no reference into the list is left.
    unsafe { libc::freeifaddrs(head) };
    found
}

/// The length of a network's prefix; without a mask, an address is alone.
fn prefix_of(address: IpAddr, mask: Option<IpAddr>) -> u8 {
    let bits = match (mask, address) {
        (Some(IpAddr::V4(mask)), _) => mask.to_bits().leading_ones(),
        (Some(IpAddr::V6(mask)), _) => mask.to_bits().leading_ones(),
        (None, IpAddr::V4(_)) => 32,
        (None, IpAddr::V6(_)) => 128,
    };
    u8::try_from(bits).unwrap_or(128)
}

fn address_of(raw: *const libc::sockaddr) -> Option<IpAddr> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: a non-null `ifa_addr` points to a socket address, whose family field is always there.
    match i32::from(unsafe { (*raw).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a `sockaddr_in`; it is read unaligned, as the list promises no alignment.
            let v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for `sockaddr_in6`.
            let v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let mut bytes = v6.sin6_addr.s6_addr;
            if Ipv6Addr::from(bytes).is_unicast_link_local() {
                bytes[2..4].fill(0); // BSD kernels keep the interface's number here
            }
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}
