//! `#[raddle::routines]`: the methods and associated functions of a type that are routines.

use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{
    Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Meta, PathArguments, Result, Type,
    ext::IdentExt,
};

use super::{generated_fns::GeneratedFns, options, signature::Signature, signature::bare};
use crate::Features;

/// Expands an `impl` block. Without calls, which need a pool, no function has the method's own
/// name.
pub(crate) fn expand(
    options: TokenStream,
    item: TokenStream,
    features: Features,
) -> Result<TokenStream> {
    if !options.is_empty() {
        return Err(Error::new_spanned(
            options,
            "#[raddle::routines] has no options: its functions have",
        ));
    }
    let mut block: ItemImpl = syn::parse2(item)?;
    let place = type_name(&block)?;
    let itself = (*block.self_ty).clone();
    let (mut items, mut entries) = (Vec::new(), TokenStream::new());
    for item in std::mem::take(&mut block.items) {
        match item {
            ImplItem::Fn(mut function) => match take_attribute(&mut function.attrs) {
                Some(attribute) => {
                    let (written, entry) = expand_method(
                        attribute_options(attribute)?,
                        &function,
                        &place,
                        &itself,
                        features,
                    )?;
                    items.push(ImplItem::Verbatim(written));
                    entries.extend(entry);
                }
                None => items.push(ImplItem::Fn(function)),
            },
            other => items.push(other),
        }
    }
    if entries.is_empty() {
        return Err(Error::new_spanned(
            block.impl_token,
            "nothing in here is a #[raddle::routine]",
        ));
    }
    block.items = items;
    Ok(quote!(#block #entries))
}

/// Returns the block without our attributes: emitted after an error, so that there is one error and
/// not one for each use.
pub(crate) fn without_attributes(item: TokenStream) -> TokenStream {
    let Ok(mut block) = syn::parse2::<ItemImpl>(item.clone()) else {
        return item;
    };
    for item in &mut block.items {
        if let ImplItem::Fn(function) = item {
            take_attribute(&mut function.attrs);
        }
    }
    block.into_token_stream()
}

/// Returns what one function becomes in the block, and its entry outside the block.
fn expand_method(
    options: TokenStream,
    function: &ImplItemFn,
    place: &str,
    itself: &Type,
    features: Features,
) -> Result<(TokenStream, TokenStream)> {
    let ImplItemFn {
        attrs,
        vis,
        sig,
        block,
        ..
    } = function;
    let signature = Signature::read(sig, true)?;
    let ident = &sig.ident;
    let plain = ident.unraw().to_string();
    let options::RoutineOptions { name, is_fresh } = options::parse(options)?;
    let name = match name {
        Some(name) => quote!(#name),
        None => quote!(::core::concat!(::core::module_path!(), "::", #place, "::", #plain)),
    };
    let (task, local) = (
        format_ident!("{}_task", ident),
        format_ident!("{}_local", ident),
    );
    let generated = GeneratedFns {
        attributes: attrs,
        visibility: vis,
        itself: Some(itself),
        is_fresh,
        signature: &signature,
    };
    let entry = generated.entry(&name, &quote!(<#itself>::#local));
    let call = features.calls.then(|| generated.call(ident, &name));
    let task = features
        .tasks
        .then(|| generated.task(&quote!(#task), &plain, &name));
    let local = generated.local(&quote!(#local), &plain, sig, block);
    Ok((quote!(#call #task #local), entry))
}

/// Returns the name of the type, which prefixes the names of its routines.
fn type_name(block: &ItemImpl) -> Result<String> {
    if let Some((path, _)) = &block.trait_ {
        let message = "the functions of a trait cannot be routines: they have its signatures. Put them into an `impl` block of the type";
        return Err(Error::new_spanned(path, message));
    }
    const GENERIC: &str = "a routine cannot be generic, and its type cannot either: its name must stand for one function";
    if !block.generics.params.is_empty() || block.generics.where_clause.is_some() {
        return Err(Error::new_spanned(&block.generics, GENERIC));
    }
    let Type::Path(path) = bare(&block.self_ty) else {
        return Err(Error::new_spanned(
            &block.self_ty,
            "routines belong to a type with a name",
        ));
    };
    let mut names = Vec::new();
    for segment in &path.path.segments {
        if !matches!(segment.arguments, PathArguments::None) {
            return Err(Error::new_spanned(&segment.arguments, GENERIC));
        }
        names.push(segment.ident.unraw().to_string());
    }
    Ok(names.join("::"))
}

/// Removes `#[raddle::routine]`, under whatever path it was written.
fn take_attribute(attributes: &mut Vec<Attribute>) -> Option<Attribute> {
    let is_ours = |attribute: &Attribute| {
        attribute
            .path()
            .segments
            .last()
            .is_some_and(|last| last.ident == "routine")
    };
    attributes
        .iter()
        .position(is_ours)
        .map(|index| attributes.remove(index))
}

fn attribute_options(attribute: Attribute) -> Result<TokenStream> {
    match attribute.meta {
        Meta::Path(_) => Ok(TokenStream::new()),
        Meta::List(list) => Ok(list.tokens),
        Meta::NameValue(other) => Err(Error::new_spanned(
            other,
            "options go into brackets: #[raddle::routine(…)]",
        )),
    }
}
