//! `#[raddle::routine]`: a function that other processes can run.
//!
//! The function's name becomes that of a function which makes a call of it, and of a type beside that, with `task` and `here`. The user's body is
//! `here`; an entry in the program's list of routines is how a worker gets to it. In an `impl` block there is no room for a type, so
//! that `#[raddle::routines]` writes `name_task` and `name_here` instead. A function without a body is one of another program.

mod declaration;
mod entry;
mod facets;
mod methods;
mod options;
mod output;
mod signature;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{ForeignItemFn, ItemFn, Result, ext::IdentExt};

pub(crate) use self::methods::{expand as expand_impl, untouched};
use self::{facets::Facets, signature::Signature};
use crate::Features;

/// What to write for a function. Without calls, which need a pool, there is nothing of its own name but a type.
pub(crate) fn expand(options: TokenStream, item: TokenStream, features: Features) -> Result<TokenStream> {
    let name = options::given_name(options)?;
    if let Ok(function) = syn::parse2(item.clone()) {
        return declaration::expand(name, function, features);
    }
    let ItemFn { attrs, vis, sig, block, .. } = syn::parse2(item)?;
    let signature = Signature::read(&sig, false)?;
    let ident = &sig.ident;
    let plain = ident.unraw().to_string();
    let name = match name {
        Some(name) => quote!(#name),
        None => quote!(::core::concat!(::core::module_path!(), "::", #plain)),
    };
    let facets = Facets { attributes: &attrs, visibility: &vis, itself: None, signature: &signature };
    let call = features.calls.then(|| facets.call(ident, &quote!(#ident::NAME)));
    let task = features.tasks.then(|| facets.task(&quote!(task), &plain, &quote!(Self::NAME)));
    let here = facets.here(&quote!(here), &plain, &sig, &block);
    let entry = facets.entry(&name, &quote!(#ident::here));
    let about = format!("The routine `{plain}`: as a task, or run here.");
    let beside = facets.beside(ident, &about, &name, &quote!(#task #here));
    Ok(quote! {
        #call

        #beside

        #entry
    })
}

/// The function as it would be without us, for errors. Without a body it would be one more.
pub(crate) fn with_a_body(item: TokenStream) -> TokenStream {
    match syn::parse2::<ForeignItemFn>(item.clone()) {
        Ok(_) => TokenStream::new(),
        Err(_) => item,
    }
}

#[cfg(test)]
mod tests;
