//! Link options of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // initfirst: the constructor runs before other libraries' constructors look at stdin, stdout and stderr.
    // nodelete: faces stay where they are, whatever a program closes.
    // now: no symbol is looked up inside a signal handler.
    // A linker that does not know initfirst has it set afterwards (scripts/initfirst.py).
    println!("cargo:rerun-if-env-changed=BIVOUAC_INITFIRST");
    let later = std::env::var_os("BIVOUAC_INITFIRST").is_some_and(|when| when == "later");
    let options = if later { &["nodelete", "now"][..] } else { &["initfirst", "nodelete", "now"] };
    for option in options {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,{option}");
    }
}
