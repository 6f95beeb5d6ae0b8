//! The return type of a function: a value, a `Result`, or a stream of items.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Error, GenericArgument, PathArguments, PathSegment, Result, ReturnType, Type, TypeParamBound,
    spanned::Spanned,
};

use super::signature::bare;

/// The return type, as the signature shows it.
pub(super) enum Output {
    /// A value of this type.
    Value(Type),
    /// A type that is called `Result`.
    Result {
        value: TokenStream,
        error: TokenStream,
    },
    /// A stream of items of this type.
    Items(Type),
}

impl Output {
    pub(super) fn read(signature: &syn::Signature) -> Result<Self> {
        let of = match &signature.output {
            ReturnType::Default => return Ok(Self::Value(Type::Verbatim(quote!(())))),
            ReturnType::Type(_, of) => bare(of),
        };
        match of {
            Type::Reference(_) => {
                let message = "a result crosses to another process: give it by value, as `String` for `&str` or `Vec<T>` for `&[T]`";
                Err(Error::new_spanned(of, message))
            }
            Type::Never(_) => Err(Error::new_spanned(
                of,
                "a routine that never returns has no result: return `()`",
            )),
            Type::ImplTrait(any) => {
                let Some(item) = any.bounds.iter().find_map(item) else {
                    let message =
                        "the only `impl Trait` that a routine returns is `impl Stream<Item = …>`";
                    return Err(Error::new_spanned(of, message));
                };
                if let Some(asyncness) = &signature.asyncness {
                    let message = "a stream begins before its first item: make this a `fn`, and wait in the stream";
                    return Err(Error::new_spanned(asyncness, message));
                }
                Ok(Self::Items(item.clone()))
            }
            Type::Path(path) => Ok(match path.path.segments.last() {
                Some(last) if last.ident == "Result" => {
                    let (value, error) = both(last).unwrap_or_else(|| hidden(of));
                    Self::Result { value, error }
                }
                _ => Self::Value(of.clone()),
            }),
            _ => Ok(Self::Value(of.clone())),
        }
    }

    /// Generates a check that a value is not a `Result` under another name: a failure would count
    /// as a success. Only the compiler can see that.
    pub(super) fn check(&self, named: impl Fn(&Type) -> TokenStream) -> TokenStream {
        let Self::Value(of) = self else {
            return TokenStream::new();
        };
        let named = named(of);
        quote_spanned! {of.span()=>
            const _: () = {
                use ::raddle::__private::NotResult as _;
                ::core::assert!(
                    !::raddle::__private::ResultProbe::<#named>::IS_RESULT,
                    "this is a `Result` by another name: write `Result`, so that it can be seen that the routine may fail",
                );
            };
        }
    }

    /// Returns the type of a call.
    pub(super) fn call(&self) -> TokenStream {
        match self {
            Self::Value(of) => quote!(::raddle::Call<#of>),
            Self::Result { value, error } => quote!(::raddle::Call<#value, #error>),
            Self::Items(of) => quote!(::raddle::CallStream<#of>),
        }
    }

    /// Returns the type of a task's result.
    pub(super) fn result(&self) -> TokenStream {
        match self {
            Self::Value(of) => of.to_token_stream(),
            Self::Result { value, .. } => value.clone(),
            Self::Items(of) => quote!(::std::vec::Vec<#of>),
        }
    }
}

/// Returns the item type, if the bound is a `Stream`.
fn item(bound: &TypeParamBound) -> Option<&Type> {
    let TypeParamBound::Trait(bound) = bound else {
        return None;
    };
    let last = bound
        .path
        .segments
        .last()
        .filter(|last| last.ident == "Stream")?;
    let PathArguments::AngleBracketed(inner) = &last.arguments else {
        return None;
    };
    inner.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(assigned) if assigned.ident == "Item" => Some(&assigned.ty),
        _ => None,
    })
}

/// Returns the type arguments of a `Result`, if both are written.
fn both(result: &PathSegment) -> Option<(TokenStream, TokenStream)> {
    let PathArguments::AngleBracketed(inner) = &result.arguments else {
        return None;
    };
    let mut types = inner.args.iter().map(|argument| match argument {
        GenericArgument::Type(of) => Some(of.to_token_stream()),
        _ => None,
    });
    match (types.next()??, types.next()??, types.next()) {
        (value, error, None) => Some((value, error)),
        _ => None,
    }
}

/// Returns the types of a `Result` alias, which hides one of them.
fn hidden(of: &Type) -> (TokenStream, TokenStream) {
    let part = |name: TokenStream| quote!(<#of as ::raddle::__private::RoutineReturn>::#name);
    (part(quote!(Value)), part(quote!(Error)))
}
