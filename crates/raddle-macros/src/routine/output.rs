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
        let ty = match &signature.output {
            ReturnType::Default => return Ok(Self::Value(Type::Verbatim(quote!(())))),
            ReturnType::Type(_, ty) => bare(ty),
        };
        match ty {
            Type::Reference(_) => {
                let message = "a result crosses to another process: give it by value, as `String` for `&str` or `Vec<T>` for `&[T]`";
                Err(Error::new_spanned(ty, message))
            }
            Type::Never(_) => Err(Error::new_spanned(
                ty,
                "a routine that never returns has no result: return `()`",
            )),
            Type::ImplTrait(any) => {
                let Some(item) = any.bounds.iter().find_map(item) else {
                    let message =
                        "the only `impl Trait` that a routine returns is `impl Stream<Item = …>`";
                    return Err(Error::new_spanned(ty, message));
                };
                if let Some(asyncness) = &signature.asyncness {
                    let message = "a stream begins before its first item: make this a `fn`, and wait in the stream";
                    return Err(Error::new_spanned(asyncness, message));
                }
                Ok(Self::Items(item.clone()))
            }
            Type::Path(path) => Ok(match path.path.segments.last() {
                Some(last) if last.ident == "Result" => {
                    let (value, error) = written_types(last).unwrap_or_else(|| alias_types(ty));
                    Self::Result { value, error }
                }
                _ => Self::Value(ty.clone()),
            }),
            _ => Ok(Self::Value(ty.clone())),
        }
    }

    /// Generates a check that a value is not a `Result` under another name: a failure would count
    /// as a success. Only the compiler can resolve the name.
    pub(super) fn check(&self, named: impl Fn(&Type) -> TokenStream) -> TokenStream {
        let Self::Value(ty) = self else {
            return TokenStream::new();
        };
        let named = named(ty);
        quote_spanned! {ty.span()=>
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
            Self::Value(ty) => quote!(::raddle::Call<#ty>),
            Self::Result { value, error } => quote!(::raddle::Call<#value, #error>),
            Self::Items(ty) => quote!(::raddle::CallStream<#ty>),
        }
    }

    /// Returns the type of a task's result.
    pub(super) fn result(&self) -> TokenStream {
        match self {
            Self::Value(ty) => ty.to_token_stream(),
            Self::Result { value, .. } => value.clone(),
            Self::Items(ty) => quote!(::std::vec::Vec<#ty>),
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
fn written_types(result: &PathSegment) -> Option<(TokenStream, TokenStream)> {
    let PathArguments::AngleBracketed(inner) = &result.arguments else {
        return None;
    };
    let mut types = inner.args.iter().map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.to_token_stream()),
        _ => None,
    });
    match (types.next()??, types.next()??, types.next()) {
        (value, error, None) => Some((value, error)),
        _ => None,
    }
}

/// Returns the types of a `Result` alias, which hides one of them.
fn alias_types(ty: &Type) -> (TokenStream, TokenStream) {
    let part = |name: TokenStream| quote!(<#ty as ::raddle::__private::RoutineReturn>::#name);
    (part(quote!(Value)), part(quote!(Error)))
}
