//! The `bivouac` command: what users and batch scripts see.
//!
//! It starts and ends deployments, and runs commands inside them. Daemons are processes of the same program.
//! It contains no file system operations: `preload` and `flush` go through the client core like every other
//! program.
//!
//! - [`args`]: the command line. [`error`]: causes, remedies, exit codes.
//! - [`home`]: a deployment's directory. [`hosts`]: which machines. [`launch`]: starting daemons there.
//! - [`up`], [`down`], [`exec`], [`run`], [`mount`] (with [`mounts`]), [`copy`] (with [`workers`] and [`checkpoints`]), [`layout`], [`status`], [`verify`], [`forward`]: the
//!   subcommands.
//! - [`policy`]: what grows and shrinks a deployment by itself.
//! - [`bench`]: the load generator. [`explore`]: access patterns through different numbers of I/O nodes.
//!   [`arbitrate`]: I/O nodes shared among jobs. [`characterize`]: storages beside each other. [`advice`]: what a Darshan log says.
//!   [`python`]: the analysis. [`printing`]: `println!` and the like, in this crate.
//! - [`daemon`]: the hidden subcommand that launchers call.

// First: its macros are those of all others.
#[macro_use]
mod printing;

mod access;
mod advice;
mod arbitrate;
mod args;
mod backend;
mod bench;
mod characterize;
mod checkpoints;
mod copy;
mod daemon;
mod down;
mod error;
mod exec;
mod existing;
mod expand;
mod explore;
mod forward;
mod heal;
mod holding;
mod home;
mod hosts;
mod joining;
mod launch;
mod layout;
mod leader;
mod leaving;
mod lifelines;
mod mount;
mod mount_point;
mod mounts;
mod policy;
mod preloading;
mod private;
mod process;
mod python;
mod rebuild;
mod replace;
mod restart;
mod resume;
mod run;
mod shrink;
mod signals;
mod status;
mod text;
mod up;
mod vacating;
mod verify;
mod view;
mod workers;

use args::{Cli, Command, Copy};
use bivouac_stage::Direction;
use clap::{CommandFactory, Parser};
use error::Error;
use home::Home;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Daemon(args) = &cli.command {
        return daemon::main(args);
    }
    match dispatch(cli.command).and_then(|code| printing::complete().map(|()| code)) {
        Ok(code) => code,
        Err(error) => {
            error.show();
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Run(args) => return run::run(&Home::from_env()?, &args),
        Command::Up(args) => start(&Home::from_env()?, &args)?,
        Command::Exec(args) => exec::exec(&Home::from_env()?, &args)?,
        Command::Mount(args) => mount::mount(&Home::from_env()?, &args)?,
        Command::Env(args) => exec::env(&Home::from_env()?, &args.name)?,
        Command::Status(args) => status::status(&Home::from_env()?, args.name.as_deref(), args.json)?,
        Command::Down(args) => down::down(&Home::from_env()?, &args.name, args.keep, args.force)?,
        Command::Heal(args) => heal::heal(&Home::from_env()?, &args)?,
        Command::Verify(args) => return verify::verify(&Home::from_env()?, &args),
        Command::Replace(args) => replace::replace(&Home::from_env()?, &args)?,
        Command::Expand(args) => expand::expand(&Home::from_env()?, &args)?,
        Command::Shrink(args) => return shrink::shrink(&Home::from_env()?, &args),
        Command::Forward(args) => forward::forward(&Home::from_env()?, &args)?,
        Command::Policy(args) => policy::policy(&Home::from_env()?, &args)?,
        Command::PolicyWatch { name } => policy::run(&Home::from_env()?, &name)?,
        Command::Rebuild(args) => rebuild::rebuild(&Home::from_env()?, &args)?,
        Command::Restart(args) => restart::restart(&Home::from_env()?, &args)?,
        Command::Preload(args) => {
            let tree = Copy { src: args.src, dst: Some(args.dst) };
            let how = copy::How::of(&args.how)?.lazy(args.lazy, args.on_demand);
            copy::copy(&Home::from_env()?, &args.name, &tree, Direction::In, &how)?;
        }
        Command::Flush(args) => {
            let tree = Copy { src: args.src, dst: Some(args.dst) };
            let how = copy::How::of(&args.how)?.changed(args.changed, args.force);
            copy::copy(&Home::from_env()?, &args.name, &tree, Direction::Out, &how)?;
        }
        Command::Bench(args) => return bench::bench(&args),
        Command::Characterize(args) => return characterize::characterize(&args),
        Command::Explore(args) => return explore::explore(&args.what),
        Command::Advise(args) => return advice::advise(&args),
        Command::Arbitrate(args) => return arbitrate::arbitrate(&args),
        Command::Layout(args) => layout::layout(&Home::from_env()?, &args)?,
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bivouac", &mut text);
            print!("{}", String::from_utf8_lossy(&text));
        }
        Command::Man { dir } => man(&dir)?,
        Command::Serve { name } => private::serve(&Home::from_env()?, &name)?,
        Command::Daemon(args) => return Ok(daemon::main(&args)),
    }
    Ok(ExitCode::SUCCESS)
}

fn start(home: &Home, args: &args::UpArgs) -> Result<(), Error> {
    signals::take(|taken| {
        if taken.is_final() {
            signals::interrupt(taken.number);
        }
    })
    .map_err(|cause| Error::System { what: "cannot wait for signals".into(), cause })?;
    let started = up::up(home, &args.name, &args.servers, false)?;
    let servers = started.record.daemons.iter().filter(|d| d.server.is_some()).count();
    let verb = if started.resumed { "is back" } else { "is up" };
    println!("{} {verb}: {} at {}", args.name, text::plural(servers, "server"), started.record.mount);
    Ok(())
}

/// One page for the command and one for each subcommand.
fn man(dir: &Path) -> Result<(), Error> {
    clap_mangen::generate_to(Cli::command(), dir).map_err(|e| Error::file("write man pages into", dir, e))
}
