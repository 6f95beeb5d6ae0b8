//! Parses a function's signature, and refuses what cannot run in another process. The errors say
//! why.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::{
    Error, FnArg, GenericArgument, Ident, Pat, PathArguments, ReceiverKind, Result, Safety, Type,
    ext::IdentExt,
};

use super::output::Output;

/// The signature of a routine.
pub(super) struct Signature {
    /// All arguments that are sent, including `self`, which comes first.
    pub(super) arguments: Vec<Argument>,
    pub(super) output: Output,
    pub(super) is_async: bool,
}

/// One argument of the function.
pub(super) struct Argument {
    pub(super) name: Ident,
    pub(super) ty: Type,
    /// True for `&self`. Its type is `Self` all the same.
    pub(super) is_borrowed: bool,
    /// The `T` of a `State<T>`, which the host has and callers do not pass.
    pub(super) state: Option<Type>,
}

impl Signature {
    /// Parses the signature of a function in an `impl` block, or of a free function.
    pub(super) fn read(signature: &syn::Signature, in_impl: bool) -> Result<Self> {
        check(signature)?;
        let argument = |input: &FnArg| match input {
            FnArg::Receiver(itself) if !in_impl => Err(Error::new_spanned(itself, STANDS_ALONE)),
            FnArg::Receiver(itself) => receiver(itself),
            FnArg::Typed(input) => self::argument(input),
        };
        let arguments = signature
            .inputs
            .iter()
            .map(argument)
            .collect::<Result<Vec<_>>>()?;
        let output = Output::read(signature)?;
        if !in_impl && let Some(word) = mentions_self(signature.to_token_stream()) {
            return Err(Error::new_spanned(word, STANDS_ALONE));
        }
        let borrowed = arguments.iter().find(|argument| argument.is_borrowed);
        if let (Output::Items(_), Some(itself)) = (&output, borrowed) {
            let message =
                "the stream outlives the copy that `&self` would borrow from: take `self`";
            return Err(Error::new_spanned(&itself.ty, message));
        }
        Ok(Self {
            arguments,
            output,
            is_async: signature.asyncness.is_some(),
        })
    }
}

impl Argument {
    /// Returns the argument's name in tasks and messages.
    pub(super) fn key(&self) -> String {
        self.name.unraw().to_string()
    }
}

const STANDS_ALONE: &str =
    "a method is registered by its `impl` block: put #[raddle::routines] on that, too";

fn check(signature: &syn::Signature) -> Result<()> {
    let generics = &signature.generics;
    if !generics.params.is_empty() || generics.where_clause.is_some() {
        let message = "a routine cannot be generic: its name must stand for one function. Make one for each type";
        return Err(Error::new_spanned(generics, message));
    }
    if let Safety::Unsafe(unsafety) = &signature.safety {
        let message = "a routine cannot be unsafe: a caller in another process cannot uphold its safety contract";
        return Err(Error::new_spanned(unsafety, message));
    }
    if let Some(variadic) = &signature.variadic {
        return Err(Error::new_spanned(
            variadic,
            "a routine takes a fixed number of arguments",
        ));
    }
    if let Some(thirteenth) = signature.inputs.iter().nth(12) {
        return Err(Error::new_spanned(
            thirteenth,
            "a routine takes at most 12 arguments: put them into a struct",
        ));
    }
    Ok(())
}

fn receiver(receiver: &syn::Receiver) -> Result<Argument> {
    let is_borrowed = match &receiver.kind {
        ReceiverKind::Value => false,
        ReceiverKind::Reference(_, None, None) => true,
        ReceiverKind::Reference(_, _, Some(_)) => {
            let message = "a routine has a copy of `self` in another process, so its changes are lost: \
                           take `self`, and return the changed value";
            return Err(Error::new_spanned(receiver, message));
        }
        _ => {
            return Err(Error::new_spanned(
                receiver,
                "a routine takes `self` or `&self`",
            ));
        }
    };
    let ty = Type::Verbatim(quote_spanned!(receiver.self_token.span=> Self));
    Ok(Argument {
        name: receiver.self_token.into(),
        ty,
        is_borrowed,
        state: None,
    })
}

fn argument(input: &syn::PatType) -> Result<Argument> {
    let Pat::Ident(name) = &*input.pat else {
        return Err(Error::new_spanned(
            &input.pat,
            "give this argument a name: tasks can name it too",
        ));
    };
    match bare(&input.ty) {
        Type::Reference(reference) => {
            let message = "an argument crosses to another process: take it by value, as `String` for `&str` or `Vec<T>` for `&[T]`";
            Err(Error::new_spanned(reference, message))
        }
        Type::ImplTrait(any) => Err(Error::new_spanned(
            any,
            "`impl Trait` is generic, and a routine cannot be: name the type",
        )),
        _ => Ok(Argument {
            name: name.ident.clone(),
            ty: (*input.ty).clone(),
            is_borrowed: false,
            state: state_type(&input.ty),
        }),
    }
}

/// Returns the `T` of a type that is written `State<T>` or `raddle::State<T>`.
pub(crate) fn state_type(ty: &Type) -> Option<Type> {
    let Type::Path(path) = bare(ty) else {
        return None;
    };
    let last = path
        .path
        .segments
        .last()
        .filter(|last| last.ident == "State")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first() {
        Some(GenericArgument::Type(state)) if arguments.args.len() == 1 => Some(state.clone()),
        _ => None,
    }
}

/// Returns the type without the groups and parentheses that macros put around it.
pub(crate) fn bare(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Group(group) => &group.elem,
            Type::Paren(paren) => &paren.elem,
            _ => return ty,
        }
    }
}

/// Finds a `Self`, which only has a meaning in an `impl` block.
fn mentions_self(tokens: TokenStream) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) => (ident == "Self").then_some(ident),
        TokenTree::Group(group) => mentions_self(group.stream()),
        _ => None,
    })
}
