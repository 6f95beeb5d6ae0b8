//! The attributes of Raddle. They are documented where applications find them, in the crate `raddle`.

mod main_function;
mod routine;

use proc_macro::TokenStream;

/// What this build of `raddle` offers.
const FEATURES: Features = Features { calls: cfg!(feature = "pool"), tasks: cfg!(feature = "queue") };

/// Which functions are generated beside a routine.
#[derive(Clone, Copy)]
struct Features {
    /// The call of a routine in a pool.
    calls: bool,
    /// The task that runs a routine.
    tasks: bool,
}

/// Makes a function one that other processes can run: called in a pool, or as a task.
#[proc_macro_attribute]
pub fn routine(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = routine::expand(options.into(), item.clone().into(), FEATURES);
    or_as_it_was(expanded, || routine::with_a_body(item.into()))
}

/// Makes methods and associated functions routines: those in this `impl` block that have `#[raddle::routine]`.
#[proc_macro_attribute]
pub fn routines(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = routine::expand_impl(options.into(), item.clone().into(), FEATURES);
    or_as_it_was(expanded, || routine::untouched(item.into()))
}

/// Makes a program its own worker.
#[proc_macro_attribute]
pub fn main(options: TokenStream, item: TokenStream) -> TokenStream {
    let expanded = main_function::expand(options.into(), item.into());
    expanded.unwrap_or_else(syn::Error::into_compile_error).into()
}

/// What is refused stays there, so that its other uses are not errors as well.
fn or_as_it_was(
    expanded: syn::Result<proc_macro2::TokenStream>,
    item: impl FnOnce() -> proc_macro2::TokenStream,
) -> TokenStream {
    let refused = |error: syn::Error| {
        let mut all = error.into_compile_error();
        all.extend(item());
        all
    };
    expanded.unwrap_or_else(refused).into()
}
