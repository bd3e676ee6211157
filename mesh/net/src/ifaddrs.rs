#![expect(unsafe_code, reason = "getifaddrs is a C function that returns a linked list")]
//! The kernel's list of interface addresses, as owned values. Decides nothing.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of one interface, with the interface's flags (`IFF_*`).
pub struct Raw {
    pub name: String,
    pub flags: u32,
    pub address: IpAddr,
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
            found.push(Raw { name: name.to_string_lossy().into_owned(), flags: item.ifa_flags, address });
        }
        entry = item.ifa_next;
    }
    // SAFETY: `head` came from `getifaddrs`, is freed once, and no reference into the list is left.
    unsafe { libc::freeifaddrs(head) };
    found
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
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}
