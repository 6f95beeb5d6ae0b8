//! Each screen over HTTP, without a browser.
