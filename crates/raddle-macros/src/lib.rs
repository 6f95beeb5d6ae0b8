//! The attributes of Raddle. They are documented where applications find them, in the crate `raddle`.

mod main_function;
mod routine;

use proc_macro::TokenStream;

/// Makes a function one that tasks can run.
#[proc_macro_attribute]
pub fn routine(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(routine::expand(options.into(), item.into()))
}

/// Makes a program its own worker.
#[proc_macro_attribute]
pub fn main(options: TokenStream, item: TokenStream) -> TokenStream {
    expand(main_function::expand(options.into(), item.into()))
}

fn expand(expanded: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    expanded.unwrap_or_else(syn::Error::into_compile_error).into()
}
