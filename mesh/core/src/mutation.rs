//! Known mistakes that can be switched on, to see that the simulator's checkers see them.
//!
//! A checker that cannot fail is worth nothing. With the feature `mutations`, and only then, a thread can be told to make one
//! of these mistakes; its simulated worlds must then turn red. Without the feature every question is a constant `false`.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A stage takes rows as they come: whatever their plan, attempt, position and prefix hash.
    SkipFencing,
    /// Records are ordered by term, epoch and revision alone: two of the same numbers are taken for one.
    NumbersForHash,
    /// An owner hands a token out twice.
    DoubleToken,
    /// An owner waits for a token without a deadline.
    ForgetDeadline,
    /// A deletion is an ordinary version, and an old record with greater numbers undoes it.
    ResurrectTombstone,
    /// A node obeys plans of an author that it holds dead.
    ObeyTheDead,
}

#[cfg(feature = "mutations")]
thread_local! {
    static MADE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread makes this mistake, or none.
#[cfg(feature = "mutations")]
pub fn make(mutation: Option<Mutation>) {
    MADE.with(|made| made.set(mutation));
}

/// Whether this mistake is to be made.
#[cfg(feature = "mutations")]
pub(crate) fn made(mutation: Mutation) -> bool {
    MADE.with(std::cell::Cell::get) == Some(mutation)
}

/// No mistake is ever made on purpose.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn made(_: Mutation) -> bool {
    false
}
