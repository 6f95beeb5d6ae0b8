//! Live updates of pages.

use crate::route::Route;

/// Fans changes out to live pages.
#[derive(Default)]
pub(crate) struct Hub;

/// The routes of live updates.
pub(crate) const ROUTES: &[Route] = &[];
