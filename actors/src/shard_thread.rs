//! A shard's thread.

use crate::shard::ShardSetup;
use crate::shard_inlet::{Order, ShardHandle, ShardInlet};

pub(crate) fn spawn(setup: ShardSetup, handle: ShardHandle, inlet: ShardInlet) -> std::io::Result<()> {
    std::thread::Builder::new().name(format!("shard-{:?}", setup.deployment)).spawn(move || {
        let _ = handle;
        while let Ok(order) = inlet.orders.recv() {
            if matches!(order, Order::Retire) {
                break;
            }
        }
    })?;
    Ok(())
}
