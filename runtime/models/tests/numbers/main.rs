//! The numbers of whole models: against the reference implementation, and against themselves under every cut, chunking,
//! batch, number of threads and CPU level. One binary, since linking is what takes long.

mod chain;
mod cuts;
mod damage;
mod invariance;
mod reference;
mod smollm2;
mod story;
