//! `#[raddle::routine]`: a function that other processes can run.
//!
//! The function's name becomes that of a function that calls it, and of a type beside it with
//! `task` and `local`. The user's body is `local`, and a worker finds it through an entry in the
//! program's routine registry. An `impl` block cannot hold a type, so `#[raddle::routines]`
//! generates `name_task` and `name_local` instead. A function without a body is a routine of
//! another program.

mod declaration;
mod entry;
mod generated_fns;
mod methods;
mod options;
mod output;
mod signature;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{ForeignItemFn, ItemFn, Result, ext::IdentExt};

pub(crate) use self::methods::{expand as expand_impl, without_attributes};
pub(crate) use self::signature::{bare, state_type};
use self::{generated_fns::GeneratedFns, signature::Signature};
use crate::Features;

/// Expands a function. Without calls, which need a pool, only a type has its name.
pub(crate) fn expand(
    options: TokenStream,
    item: TokenStream,
    features: Features,
) -> Result<TokenStream> {
    let options::RoutineOptions { name, is_fresh } = options::parse(options)?;
    if let Ok(function) = syn::parse2(item.clone()) {
        return declaration::expand(name, function, features);
    }
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
        ..
    } = syn::parse2(item)?;
    let signature = Signature::read(&sig, false)?;
    let ident = &sig.ident;
    let plain = ident.unraw().to_string();
    let name = match name {
        Some(name) => quote!(#name),
        None => quote!(::core::concat!(::core::module_path!(), "::", #plain)),
    };
    let generated = GeneratedFns {
        attributes: &attrs,
        visibility: &vis,
        itself: None,
        is_fresh,
        signature: &signature,
    };
    let call = features
        .calls
        .then(|| generated.call(ident, &quote!(#ident::NAME)));
    let task = features
        .tasks
        .then(|| generated.task(&quote!(task), &plain, &quote!(Self::NAME)));
    let local = generated.local(&quote!(local), &plain, &sig, &block);
    let entry = generated.entry(&name, &quote!(#ident::local));
    let about = format!("The routine `{plain}`: as a task, or in this process.");
    let companion = generated.companion_type(ident, &about, &name, &quote!(#task #local));
    Ok(quote! {
        #call

        #companion

        #entry
    })
}

/// Returns the original function, emitted after an error. A function without a body is omitted,
/// since it would be another error.
pub(crate) fn without_declaration(item: TokenStream) -> TokenStream {
    match syn::parse2::<ForeignItemFn>(item.clone()) {
        Ok(_) => TokenStream::new(),
        Err(_) => item,
    }
}

#[cfg(test)]
mod tests;
