//! Generates everything that must know all methods of the broker from one declaration: the traits,
//! a [`Call`](crate::Call) and a [`Reply`](crate::Reply) with one variant per method,
//! `Call::perform` (a call on an engine), and the traits' methods on top of a
//! [`CallHandler`](crate::CallHandler).

/// Declares traits of async methods. After `as` comes the name of the method's
/// [`Call`](crate::Call) variant; `waits` is the time for which the method may block; `doubles` is
/// the effect that happens twice if the call is sent twice. Both expressions see the arguments as
/// references.
macro_rules! declare {
    ($(
        $(#[$about:meta])*
        trait $Trait:ident {
            $(
                $(#[$doc:meta])*
                async fn $method:ident(&self $(, $(#[$field:meta])* $arg:ident: $ty:ty)*) -> Result<$ret:ty>
                    as $Call:ident $(, waits $wait:expr)? $(, doubles $doubled:expr)?;
            )*
        }
    )*) => {
        $(
            $(#[$about])*
            #[async_trait]
            pub trait $Trait: Send + Sync + 'static {
                $( $(#[$doc])* async fn $method(&self $(, $arg: $ty)*) -> Result<$ret>; )*
            }

            #[async_trait]
            impl<T: CallHandler> $Trait for T {
                $(
                    async fn $method(&self $(, $arg: $ty)*) -> Result<$ret> {
                        match self.call(Call::$Call { $($arg),* }).await? {
                            Reply::$Call(value) => Ok(value),
                            other => Err(other.unexpected()),
                        }
                    }
                )*
            }
        )*

        /// One call of a broker: a method with its arguments.
        #[derive(Debug, Serialize, Deserialize)]
        #[expect(clippy::large_enum_variant, reason = "short-lived: a box would cost an allocation per call")]
        pub enum Call {
            $($(
                #[doc = concat!("[`", stringify!($Trait), "::", stringify!($method), "`].")]
                $Call { $( #[doc = "An argument of the method."] $(#[$field])* $arg: $ty ),* },
            )*)*
        }

        /// The return value of a call.
        #[derive(Debug, Serialize, Deserialize)]
        #[expect(clippy::large_enum_variant, reason = "short-lived: a box would cost an allocation per call")]
        pub enum Reply {
            $($(
                #[doc = concat!("Returned by [`", stringify!($Trait), "::", stringify!($method), "`].")]
                $Call($ret),
            )*)*
        }

        impl Call {
            /// Performs the call on `broker`.
            pub async fn perform(self, broker: &dyn Broker) -> Result<Reply> {
                match self {
                    $($( Self::$Call { $($arg),* } => broker.$method($($arg),*).await.map(Reply::$Call), )*)*
                }
            }

            /// For how long the call may block.
            #[expect(unused_variables, reason = "most calls do not block")]
            pub fn max_wait(&self) -> Duration {
                match self {
                    $($( Self::$Call { $($arg),* } => Duration::ZERO $(+ $wait)?, )*)*
                }
            }

            /// The effect that happens twice if the call is sent twice, for the error message.
            /// `None` for calls that are safe to repeat: they are fenced, idempotent, or append
            /// output, where a duplicate is better than a loss.
            #[expect(unused_variables, reason = "most calls are safe to repeat")]
            pub fn repeated_effect(&self) -> Option<&'static str> {
                match self {
                    $($( Self::$Call { $($arg),* } => None $(.or($doubled))?, )*)*
                }
            }
        }
    };
}

pub(crate) use declare;
