//! Link options of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // initfirst: the constructor runs before other libraries' constructors look at stdin, stdout and stderr.
    // nodelete: faces stay where they are, whatever a program closes.
    // now: no symbol is looked up inside a signal handler.
    for option in ["initfirst", "nodelete", "now"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,{option}");
    }
}
