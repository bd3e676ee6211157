//! Worlds, faults and checkers that drive the shipped actors and cores on virtual time.
