//! One command for every check.
fn main() {}
