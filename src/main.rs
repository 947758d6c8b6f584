//! The program: arguments in, exit code out.

use std::process::ExitCode;

use vestibule::cli::{Cli, Command, Settings};
use vestibule::{control, sys};

fn main() -> ExitCode {
    let result = match Cli::from_process().into_command() {
        Command::Run(settings) => run(&settings),
        Command::Check(settings) => check(&settings),
        Command::Demo => control::demo::run().map_err(|e| e.to_string()),
        Command::Healthcheck(asked) => asked
            .target()
            .map_err(|e| e.to_string())
            .and_then(|admin| control::healthcheck::healthcheck(&admin)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("vestibule: {}", problem.replace('\n', "\nvestibule: "));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), String> {
    sys::files::raise_limit();
    control::run(&|| settings.load()).map_err(|e| e.to_string())
}

fn check(settings: &Settings) -> Result<(), String> {
    sys::files::raise_limit();
    let config = settings.load().map_err(|e| e.to_string())?;
    let page = control::check::check(&config).map_err(|e| e.to_string())?;
    print!("{page}");
    Ok(())
}
