//! Live updates of pages.
//!
//! ```text
//!  event log ─► tail ─► topics ─► sessions ─► SSE ─► browser
//!                (one)   (one per screen)  (one per browser)
//! ```
//!
//! A topic is a screen: the path and the query string of a page, and the rows that it shows. When
//! the log has moved, each topic that someone looks at is rendered again, at most four times a
//! second, by the function that renders the page, and the parts that differ are sent as HTML with
//! the ids of the elements that they replace. So a patch always shows what a reload would, however
//! many events came in between.
//!
//! Without sessions nothing runs.

mod fragments;
mod hub;
mod routes;
mod topic;

pub(crate) use hub::Hub;
pub(crate) use routes::ROUTES;
