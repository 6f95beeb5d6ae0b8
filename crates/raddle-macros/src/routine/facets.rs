//! The functions that a routine is written as: one that calls it, one that makes a task of it, and the user's own.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Attribute, Block, Ident, Type, Visibility};

use super::signature::{Argument, Signature};

/// What they have in common.
pub(super) struct Facets<'a> {
    pub(super) attributes: &'a [Attribute],
    pub(super) visibility: &'a Visibility,
    /// What `Self` is, in an `impl` block.
    pub(super) itself: Option<&'a Type>,
    pub(super) signature: &'a Signature,
}

impl Facets<'_> {
    /// The one of the routine's own name.
    pub(super) fn call(&self, ident: &Ident, name: &TokenStream) -> TokenStream {
        let about = self.picked(&["cfg", "doc", "deprecated"]);
        let (visibility, inputs, call) = (self.visibility, self.inputs(), self.signature.output.call());
        let count = self.signature.arguments.len();
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

    /// The type of the routine's own name, with that in tasks and calls, and with these functions.
    pub(super) fn beside(
        &self,
        ident: &Ident,
        about: &str,
        name: &TokenStream,
        functions: &TokenStream,
    ) -> TokenStream {
        let (visibility, conditions) = (self.visibility, self.conditions());
        quote! {
            #(#conditions)*
            #[doc = #about]
            #[allow(non_camel_case_types, dead_code, reason = "it stands beside a function and has its name")]
            #visibility struct #ident {
                _never: ::core::convert::Infallible,
            }

            #(#conditions)*
            impl #ident {
                /// Its name in tasks and calls.
                #[allow(dead_code, reason = "a program may have no use for it")]
                #visibility const NAME: &'static str = #name;

                #functions
            }
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
        let all = self.signature.arguments.iter().map(|Argument { name, of, is_borrowed }| {
            match (name == "self", is_borrowed) {
                (true, true) => quote!(&self),
                (true, false) => quote!(self),
                (false, _) => quote!(#name: #of),
            }
        });
        quote!(#(#all),*)
    }

    /// A function that writes packed arguments in JSON: for workers that read nothing else, whose types are only known here.
    fn rewrite(&self) -> TokenStream {
        let arguments = &self.signature.arguments;
        let count = arguments.len();
        let each = arguments.iter().map(|argument| {
            let (of, key) = (&argument.of, argument.key());
            quote!(<#of as ::raddle::__private::Crosses>::rewrite(&mut __rewriting, #key)?;)
        });
        let mutability = (count > 0).then(|| quote!(mut));
        quote! {
            |__packed| {
                let #mutability __rewriting = ::raddle::__private::Rewriting::of(__packed, #count)?;
                #(#each)*
                ::core::result::Result::Ok(__rewriting.finish())
            }
        }
    }

    /// `first`, with every argument added to it.
    fn each(&self, first: TokenStream, add: &str) -> TokenStream {
        let add = Ident::new(add, Span::call_site());
        self.signature.arguments.iter().fold(first, |all, argument| {
            let (Argument { name, of, is_borrowed }, key) = (argument, argument.key());
            let value = if *is_borrowed { quote!(#name) } else { quote!(&#name) };
            quote!(<#of as ::raddle::__private::Crosses>::#add(#value, #all, #key))
        })
    }
}
