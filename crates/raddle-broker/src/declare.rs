//! From one declaration of the broker's methods to all that has to know every one of them: the traits, a value for each call and for what it
//! returns, the way from such a value to an engine, and the way back from a trait to such a value.

/// Declares traits of async methods. Behind each method stands the name of its [`Call`](crate::Call), how long it `waits` for something to happen, if
/// it can, and what has happened twice if it `doubles` when it is sent again. Both see the arguments as references.
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
                            other => Err(other.misplaced()),
                        }
                    }
                )*
            }
        )*

        /// One call of a broker: a method with its arguments.
        #[derive(Debug, Serialize, Deserialize)]
        #[expect(clippy::large_enum_variant, reason = "one exists for the time of a call: a box would cost an allocation for each")]
        pub enum Call {
            $($(
                #[doc = concat!("[`", stringify!($Trait), "::", stringify!($method), "`].")]
                $Call { $( #[doc = "As the method has it."] $(#[$field])* $arg: $ty ),* },
            )*)*
        }

        /// What a call has returned.
        #[derive(Debug, Serialize, Deserialize)]
        #[expect(clippy::large_enum_variant, reason = "one exists for the time of a call: a box would cost an allocation for each")]
        pub enum Reply {
            $($(
                #[doc = concat!("Of [`", stringify!($Trait), "::", stringify!($method), "`].")]
                $Call($ret),
            )*)*
        }

        impl Call {
            /// Makes the call.
            pub async fn perform(self, broker: &dyn Broker) -> Result<Reply> {
                match self {
                    $($( Self::$Call { $($arg),* } => broker.$method($($arg),*).await.map(Reply::$Call), )*)*
                }
            }

            /// How long the call may wait for something to happen.
            #[expect(unused_variables, reason = "few calls wait, and few arguments say how long")]
            pub fn wait(&self) -> Duration {
                match self {
                    $($( Self::$Call { $($arg),* } => Duration::ZERO $(+ $wait)?, )*)*
                }
            }

            /// What is done a second time when the call is, if something is. The rest is fenced, or changes nothing more, or is output, which is
            /// better there twice than not at all.
            #[expect(unused_variables, reason = "few calls do something twice, and fewer arguments decide that")]
            pub fn doubles(&self) -> Option<&'static str> {
                match self {
                    $($( Self::$Call { $($arg),* } => None $(.or($doubled))?, )*)*
                }
            }
        }
    };
}

pub(crate) use declare;
