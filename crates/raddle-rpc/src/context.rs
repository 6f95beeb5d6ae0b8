//! Context values: they travel with calls, and every routine down the chain sees them.
//!
//! ```no_run
//! # use raddle_rpc::context::ContextKey;
//! static TENANT: ContextKey<String> = ContextKey::new("tenant");
//!
//! # async fn example() {
//! TENANT.scope("acme".into(), async {
//!     // Also in routines that are called here, in any process.
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

/// All values by name.
pub(crate) type ContextValues = Arc<BTreeMap<String, ContextValue>>;

/// An encoded value.
#[derive(Clone, Debug)]
pub(crate) struct ContextValue {
    encoding: Encoding,
    bytes: Bytes,
    /// Transcodes the value, by its type where that is known.
    transcode: ValueTranscoder,
}

/// Transcodes from one encoding to another.
type ValueTranscoder = fn(Encoding, &[u8], Encoding) -> Result<Vec<u8>, String>;

impl ContextValue {
    /// A value that came with a call, of unknown type.
    pub(crate) fn received(encoding: Encoding, bytes: Bytes) -> Self {
        Self {
            encoding,
            bytes,
            transcode: Encoding::rewrite_any,
        }
    }

    fn encode_for(&self, encoding: Encoding) -> Result<Bytes, String> {
        if encoding == self.encoding {
            return Ok(self.bytes.clone());
        }
        (self.transcode)(self.encoding, &self.bytes, encoding).map(Bytes::from)
    }
}

/// Encodes all values.
pub(crate) fn encode_values(
    values: &ContextValues,
    encoding: Encoding,
) -> Result<HashMap<String, Bytes>, String> {
    let write = |(name, value): (&String, &ContextValue)| match value.encode_for(encoding) {
        Ok(bytes) => Ok((name.clone(), bytes)),
        Err(error) => Err(format!(
            "cannot send the context value '{name}' as {encoding}: {error}"
        )),
    };
    values.iter().map(write).collect()
}

/// The name and type of a context value.
#[derive(Debug)]
pub struct ContextKey<T> {
    name: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> ContextKey<T> {
    /// A key with this name, which caller and routine must both use.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            value: PhantomData,
        }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> ContextKey<T> {
    /// The value in the current scope. `None` if it is not set, or of another type.
    pub fn get(&self) -> Option<T> {
        Scope::current()
            .values
            .get(self.name)
            .and_then(|value| value.encoding.read(&value.bytes).ok())
    }

    /// Sets the value for a future and everything that it calls.
    ///
    /// # Panics
    /// If the value cannot be serialised.
    pub fn scope<F: Future>(
        &self,
        value: T,
        future: F,
    ) -> impl Future<Output = F::Output> + use<T, F> {
        let encoding = Encoding::default();
        let bytes = encoding
            .write(&value)
            .expect("a context value serialises")
            .into();
        let (name, value) = (
            self.name,
            ContextValue {
                encoding,
                bytes,
                transcode: Encoding::rewrite::<T>,
            },
        );
        async move {
            let mut scope = Scope::current();
            Arc::make_mut(&mut scope.values).insert(name.to_owned(), value);
            scope.run(future).await
        }
    }
}

/// The trace of the current scope: of the routine's caller, or of this process.
pub fn trace() -> Option<Trace> {
    Scope::current().trace().cloned()
}

/// The time left until the caller's deadline, if there is one.
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
    async fn inner_scopes_shadow_outer_ones() {
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

    async fn encoded(encoding: Encoding) -> Result<HashMap<String, Bytes>, String> {
        encode_values(&Scope::current().values, encoding)
    }

    #[tokio::test]
    async fn values_are_transcoded_by_type() {
        let json = PLACE
            .scope(Ipv4Addr::LOCALHOST, encoded(Encoding::Json))
            .await
            .unwrap();
        assert_eq!(json["place"].as_ref(), br#""127.0.0.1""#);
        let error = WEIGHT
            .scope(f64::NAN, encoded(Encoding::Json))
            .await
            .unwrap_err();
        assert!(
            error.starts_with("cannot send the context value 'weight' as json: NaN"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn received_json_values_are_read_and_passed_on() {
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
            let error = encoded(Encoding::MessagePack).await.unwrap_err();
            assert!(
                error.starts_with("cannot send the context value 'torn' as messagepack"),
                "{error}"
            );
            assert_eq!(
                encoded(Encoding::Json).await.unwrap()["torn"].as_ref(),
                b"{",
                "unchanged"
            );
        };
        Scope {
            values: Arc::clone(&values),
            ..Scope::default()
        }
        .run(inside)
        .await;
        let mut values = values;
        Arc::make_mut(&mut values).remove("torn");
        assert_eq!(
            encode_values(&values, Encoding::MessagePack).unwrap()["name"].as_ref(),
            b"\xa4acme"
        );
    }
}
