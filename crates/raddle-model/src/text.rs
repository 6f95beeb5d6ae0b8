//! Enums and ids that are written as text.

/// Implements `ALL`, `as_str` and `Display` for an enum. The names must be in the order of the
/// discriminants.
macro_rules! names {
    ($type:ident { $($value:ident => $name:literal,)+ }) => {
        impl $type {
            /// All values, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Implements `Serialize` by `Display`, and `Deserialize` by `FromStr`.
macro_rules! serialized_as_text {
    ($($type:ident),+) => {
        $(impl ::serde::Serialize for $type {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $type {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        })+
    };
}

pub(crate) use {names, serialized_as_text};

/// Returns whether a value is the default: for `skip_serializing_if`.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
