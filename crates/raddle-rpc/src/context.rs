//! Values that travel with calls: whoever is called, however far down, finds them as its caller had them.
//!
//! ```no_run
//! # use raddle_rpc::context::Key;
//! static TENANT: Key<String> = Key::new("tenant");
//!
//! # async fn example() {
//! TENANT.scope("acme".into(), async {
//!     // Also in routines that are called here, in whatever process they run.
//!     assert_eq!(TENANT.get().as_deref(), Some("acme"));
//! }).await;
//! # }
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use raddle_model::{Trace, routine::Encoding};
use serde::{Serialize, de::DeserializeOwned};

use crate::scope::Scope;

/// All values, by name.
pub(crate) type ContextValues = Arc<BTreeMap<String, ContextValue>>;

/// A value, as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct ContextValue {
    encoding: Encoding,
    bytes: Bytes,
    /// Writes it in another encoding: by its type, where that is known.
    rewrite: ValueTranscoder,
}

/// From an encoding to another.
type ValueTranscoder = fn(Encoding, &[u8], Encoding) -> Result<Vec<u8>, String>;

impl ContextValue {
    /// One that has come with a call, and is of whatever type.
    pub(crate) fn received(encoding: Encoding, bytes: Bytes) -> Self {
        Self {
            encoding,
            bytes,
            rewrite: Encoding::rewrite_any,
        }
    }

    fn encode_for(&self, encoding: Encoding) -> Result<Bytes, String> {
        if encoding == self.encoding {
            return Ok(self.bytes.clone());
        }
        (self.rewrite)(self.encoding, &self.bytes, encoding).map(Bytes::from)
    }
}

/// All values, as they are sent to who reads this.
pub(crate) fn encode_values(
    values: &ContextValues,
    encoding: Encoding,
) -> Result<HashMap<String, Bytes>, String> {
    let write = |(name, value): (&String, &ContextValue)| match value.encode_for(encoding) {
        Ok(bytes) => Ok((name.clone(), bytes)),
        Err(error) => Err(format!(
            "the context value '{name}' cannot be sent as {encoding}: {error}"
        )),
    };
    values.iter().map(write).collect()
}

/// The name and the type of a value.
#[derive(Debug)]
pub struct ContextKey<T> {
    name: &'static str,
    of: PhantomData<fn() -> T>,
}

impl<T> ContextKey<T> {
    /// One with this name, which callers and those they call must both use.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            of: PhantomData,
        }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> ContextKey<T> {
    /// The value here. `None` if nobody has set it, or as another type.
    pub fn get(&self) -> Option<T> {
        Scope::current()
            .values
            .get(self.name)
            .and_then(|value| value.encoding.read(&value.bytes).ok())
    }

    /// Sets it for a future, and for all that is called in there.
    ///
    /// # Panics
    /// If the value's own code fails to write it down.
    pub fn scope<F: Future>(
        &self,
        value: T,
        future: F,
    ) -> impl Future<Output = F::Output> + use<T, F> {
        let encoding = Encoding::default();
        let bytes = encoding
            .write(&value)
            .expect("a context value can be written down")
            .into();
        let (name, value) = (
            self.name,
            ContextValue {
                encoding,
                bytes,
                rewrite: Encoding::rewrite::<T>,
            },
        );
        async move {
            let mut scope = Scope::current();
            Arc::make_mut(&mut scope.values).insert(name.to_owned(), value);
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
    use std::net::Ipv4Addr;

    use super::*;

    static NAME: ContextKey<String> = ContextKey::new("name");
    static SIZE: ContextKey<u32> = ContextKey::new("size");
    static NAME_AS_NUMBER: ContextKey<u32> = ContextKey::new("name");

    #[tokio::test]
    async fn values_hold_inside_and_inner_ones_come_first() {
        assert_eq!(NAME.get(), None);
        let inside = async {
            assert_eq!(
                (NAME.get().as_deref(), SIZE.get()),
                (Some("outer"), Some(3))
            );
            NAME.scope("inner".into(), async {
                assert_eq!(NAME.get().as_deref(), Some("inner"))
            })
            .await;
            assert_eq!(NAME.get().as_deref(), Some("outer"));
            assert_eq!(NAME_AS_NUMBER.get(), None, "of another type");
        };
        NAME.scope("outer".into(), async { SIZE.scope(3, inside).await })
            .await;
        assert_eq!(NAME.get(), None);
    }

    static PLACE: ContextKey<Ipv4Addr> = ContextKey::new("place");
    static WEIGHT: ContextKey<f64> = ContextKey::new("weight");

    async fn sent(encoding: Encoding) -> Result<HashMap<String, Bytes>, String> {
        encode_values(&Scope::current().values, encoding)
    }

    #[tokio::test]
    async fn values_are_sent_by_their_type_in_whatever_encoding() {
        let json = PLACE
            .scope(Ipv4Addr::LOCALHOST, sent(Encoding::Json))
            .await
            .unwrap();
        assert_eq!(json["place"].as_ref(), br#""127.0.0.1""#);
        let error = WEIGHT
            .scope(f64::NAN, sent(Encoding::Json))
            .await
            .unwrap_err();
        assert!(
            error.starts_with("the context value 'weight' cannot be sent as json: NaN"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn values_that_have_come_in_json_are_read_and_passed_on() {
        let received = |(name, json): (&str, &'static str)| {
            (
                name.to_owned(),
                ContextValue::received(Encoding::Json, Bytes::from_static(json.as_bytes())),
            )
        };
        let values = [
            ("name", r#""acme""#),
            ("size", "3"),
            ("place", r#""127.0.0.1""#),
            ("torn", "{"),
        ];
        let values = Arc::new(values.into_iter().map(received).collect());
        let inside = async {
            assert_eq!((NAME.get().as_deref(), SIZE.get()), (Some("acme"), Some(3)));
            assert_eq!(
                (PLACE.get(), NAME_AS_NUMBER.get()),
                (Some(Ipv4Addr::LOCALHOST), None)
            );
            let error = sent(Encoding::MessagePack).await.unwrap_err();
            assert!(
                error.starts_with("the context value 'torn' cannot be sent as messagepack"),
                "{error}"
            );
            assert_eq!(
                sent(Encoding::Json).await.unwrap()["torn"].as_ref(),
                b"{",
                "as it came"
            );
        };
        Scope {
            values: Arc::clone(&values),
            ..Scope::default()
        }
        .around(inside)
        .await;
        let mut values = values;
        Arc::make_mut(&mut values).remove("torn");
        assert_eq!(
            encode_values(&values, Encoding::MessagePack).unwrap()["name"].as_ref(),
            b"\xa4acme"
        );
    }
}
