//! The libp2p adapter: keys, discovery, gossip, control streams.
