//! The functions that a routine is written as: one that calls it, one that makes a task of it, and the user's own.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{Attribute, Block, Ident, Visibility};

use super::signature::{Argument, Signature};

/// What they have in common.
pub(super) struct Facets<'a> {
    pub(super) attributes: &'a [Attribute],
    pub(super) visibility: &'a Visibility,
    pub(super) signature: &'a Signature,
}

impl Facets<'_> {
    /// The one of the routine's own name.
    pub(super) fn call(&self, ident: &Ident, name: &TokenStream) -> TokenStream {
        let about = self.picked(&["cfg", "doc", "deprecated"]);
        let (visibility, inputs, call) = (self.visibility, self.inputs(), self.signature.output.call());
        let count = self.signature.count();
        let rewrite = self.rewrite();
        let packed = quote!(::raddle::__private::Packed::new(#count).rewritten_by(#rewrite));
        let packed = self.each(packed, "pack");
        quote! {
            #(#about)*
            #[allow(dead_code, clippy::too_many_arguments, reason = "it is written for whoever may need it")]
            #visibility fn #ident(#inputs) -> #call {
                <#call>::new(#name, #packed)
            }
        }
    }

    pub(super) fn task(&self, ident: &TokenStream, plain: &str, name: &TokenStream) -> TokenStream {
        let about = self.picked(&["cfg", "deprecated"]);
        let doc = format!("A task that calls `{plain}` with these arguments.");
        let (visibility, inputs, result) = (self.visibility, self.inputs(), self.signature.output.result());
        let task = self.each(quote!(::raddle::Task::new(#name)), "give");
        quote! {
            #(#about)*
            #[doc = #doc]
            #[allow(dead_code, clippy::too_many_arguments, reason = "it is written for whoever may need it")]
            #visibility fn #ident(#inputs) -> ::raddle::Task<#result> {
                #task
            }
        }
    }

    /// The user's own function, under another name.
    pub(super) fn here(&self, ident: &TokenStream, plain: &str, sig: &syn::Signature, block: &Block) -> TokenStream {
        let syn::Signature { constness, asyncness, abi, inputs, output, .. } = sig;
        let about = self.attributes.iter().filter(|attribute| !attribute.path().is_ident("doc"));
        let doc = format!("`{plain}` itself, in this process: nobody else is asked.");
        let visibility = self.visibility;
        quote! {
            #(#about)*
            #[doc = #doc]
            #visibility #constness #asyncness #abi fn #ident(#inputs) #output #block
        }
    }

    /// Attributes that say whether there is such a function at all.
    pub(super) fn conditions(&self) -> Vec<&Attribute> {
        self.picked(&["cfg"])
    }

    fn picked(&self, names: &[&str]) -> Vec<&Attribute> {
        let is_one = |attribute: &&Attribute| names.iter().any(|name| attribute.path().is_ident(name));
        self.attributes.iter().filter(is_one).collect()
    }

    /// Arguments as a function declares them that does not change them.
    fn inputs(&self) -> TokenStream {
        let receiver = self.signature.receiver.as_ref().map(|receiver| match receiver.is_borrowed {
            true => quote!(&self),
            false => quote!(self),
        });
        let others = self.signature.arguments.iter().map(|Argument { name, of }| quote!(#name: #of));
        let all = receiver.into_iter().chain(others);
        quote!(#(#all),*)
    }

    /// A function that writes packed arguments in JSON: for workers that read nothing else, whose types are only known here.
    fn rewrite(&self) -> TokenStream {
        let count = self.signature.count();
        let (packed, rewriting) =
            (Ident::new("packed", Span::mixed_site()), Ident::new("rewriting", Span::mixed_site()));
        let receiver = self.signature.receiver.as_ref().map(|receiver| (&receiver.of, "self".to_owned()));
        let others = self.signature.arguments.iter().map(|argument| (&argument.of, argument.key()));
        let each = receiver.into_iter().chain(others);
        let each =
            each.map(|(of, key)| quote!(<#of as ::raddle::__private::Crosses>::rewrite(&mut #rewriting, #key)?;));
        let mutability = (count > 0).then(|| quote!(mut));
        quote! {
            |#packed| {
                let #mutability #rewriting = ::raddle::__private::Rewriting::of(#packed, #count)?;
                #(#each)*
                ::core::result::Result::Ok(#rewriting.finish())
            }
        }
    }

    /// `first`, with every argument added to it.
    fn each(&self, first: TokenStream, add: &str) -> TokenStream {
        let add = Ident::new(add, Span::call_site());
        let mut all = first;
        let mut then = |of: &dyn ToTokens, value: TokenStream, key: &str| {
            all = quote!(<#of as ::raddle::__private::Crosses>::#add(#value, #all, #key));
        };
        if let Some(receiver) = &self.signature.receiver {
            then(&receiver.of, if receiver.is_borrowed { quote!(self) } else { quote!(&self) }, "self");
        }
        for argument in &self.signature.arguments {
            let name = &argument.name;
            then(&argument.of, quote!(&#name), &argument.key());
        }
        all
    }
}
