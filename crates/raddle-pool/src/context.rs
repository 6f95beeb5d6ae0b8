//! Values that travel with calls: whoever is called, however far down, finds them as its caller had them.
//!
//! ```no_run
//! # use raddle_pool::context::Key;
//! static TENANT: Key<String> = Key::new("tenant");
//!
//! # async fn example() {
//! TENANT.scope("acme".into(), async {
//!     // Also in routines that are called here, in whatever process they run.
//!     assert_eq!(TENANT.get().as_deref(), Some("acme"));
//! }).await;
//! # }
//! ```

use std::{collections::BTreeMap, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use raddle_core::Trace;
use serde::{Serialize, de::DeserializeOwned};

use crate::scope::Scope;

/// All values, by name, as they are sent.
pub(crate) type Values = Arc<BTreeMap<String, Bytes>>;

/// The name and the type of a value.
#[derive(Debug)]
pub struct Key<T> {
    name: &'static str,
    of: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// One with this name, which callers and those they call must both use.
    pub const fn new(name: &'static str) -> Self {
        Self { name, of: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned> Key<T> {
    /// The value here. `None` if nobody has set it, or as another type.
    pub fn get(&self) -> Option<T> {
        Scope::current().values.get(self.name).and_then(|bytes| rmp_serde::from_slice(bytes).ok())
    }

    /// Sets it for a future, and for all that is called in there.
    ///
    /// # Panics
    /// If the value's own code fails to write it down.
    pub fn scope<F: Future>(&self, value: T, future: F) -> impl Future<Output = F::Output> + use<T, F> {
        let bytes = rmp_serde::to_vec_named(&value).expect("a context value can be written down");
        let name = self.name;
        async move {
            let mut scope = Scope::current();
            Arc::make_mut(&mut scope.values).insert(name.to_owned(), bytes.into());
            scope.around(future).await
        }
    }
}

/// The trace that the routine that asks belongs to: its caller's, or its process's.
pub fn trace() -> Option<Trace> {
    Scope::current().trace().cloned()
}

/// How much time the routine that asks has left, if its caller will not wait for ever.
pub fn time_left() -> Option<Duration> {
    Scope::current().timeout(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAME: Key<String> = Key::new("name");
    static SIZE: Key<u32> = Key::new("size");
    static NAME_AS_NUMBER: Key<u32> = Key::new("name");

    #[tokio::test]
    async fn values_hold_inside_and_inner_ones_come_first() {
        assert_eq!(NAME.get(), None);
        let inside = async {
            assert_eq!((NAME.get().as_deref(), SIZE.get()), (Some("outer"), Some(3)));
            NAME.scope("inner".into(), async { assert_eq!(NAME.get().as_deref(), Some("inner")) }).await;
            assert_eq!(NAME.get().as_deref(), Some("outer"));
            assert_eq!(NAME_AS_NUMBER.get(), None, "of another type");
        };
        NAME.scope("outer".into(), async { SIZE.scope(3, inside).await }).await;
        assert_eq!(NAME.get(), None);
    }
}
