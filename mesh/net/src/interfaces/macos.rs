#![expect(unsafe_code, reason = "SIOCGIFMEDIA, the one way to tell Wi-Fi from Ethernet without a framework, is an ioctl")]
//! What macOS says of an interface, without frameworks: its name, and the medium behind an `en`.
//!
//! `bridge0` is the Thunderbolt bridge. A Thunderbolt port that was taken out of the bridge is an `en` like any other, and
//! counts as Ethernet until it is measured. Which `en` is Wi-Fi differs from model to model: SIOCGIFMEDIA tells (as Chromium
//! asks it in net/base/network_interfaces_getifaddrs.cc). This file is type-checked, not run, on Linux.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use mesh_core::links::InterfaceKind;

use super::names::{Class, by_name};

/// `struct ifmediareq` of bsd/net/if_media.h, which packs to four bytes: 44 bytes.
#[repr(C, packed(4))]
struct MediaRequest {
    name: [libc::c_char; libc::IFNAMSIZ],
    current: libc::c_int,
    mask: libc::c_int,
    status: libc::c_int,
    active: libc::c_int,
    count: libc::c_int,
    list: *mut libc::c_int,
}

const _: () = assert!(size_of::<MediaRequest>() == 44);

/// `_IOWR('i', 56, struct ifmediareq)`.
const SIOCGIFMEDIA: libc::c_ulong = 0xc02c_6938;
/// `IFM_IEEE80211`, among the bits of `IFM_NMASK`.
const WIFI: libc::c_int = 0x80;
const KIND_BITS: libc::c_int = 0xe0;

/// The class of an interface.
pub fn classify(name: &str, _index: u32) -> Class {
    let class = by_name(name);
    if class.kind == InterfaceKind::Ethernet && medium(name).is_some_and(|medium| medium & KIND_BITS == WIFI) {
        return Class::of(InterfaceKind::Wifi);
    }
    class
}

/// `ifm_current` of an interface; none if it has no medium.
fn medium(name: &str) -> Option<libc::c_int> {
    let mut request =
        MediaRequest { name: [0; libc::IFNAMSIZ], current: 0, mask: 0, status: 0, active: 0, count: 0, list: std::ptr::null_mut() };
    if name.len() >= libc::IFNAMSIZ {
        return None;
    }
    for (to, from) in request.name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: no pointers; the descriptor is checked before it is owned.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) };
    if raw < 0 {
        return None;
    }
    // SAFETY: `raw` was just made and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: the request is as long as its number says, lives during the call, and asks for no list (`count` is 0).
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGIFMEDIA, &raw mut request) };
    (done == 0).then_some(request.current)
}

/// Not asked here: the order of what looks alike is by name.
pub fn default_routes() -> BTreeSet<String> {
    BTreeSet::new()
}
