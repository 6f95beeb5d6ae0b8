//! Names, and what follows from them.

mod allow;
mod identities;
