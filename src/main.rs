//! The program: arguments in, exit code out.

use std::process::ExitCode;

use vestibule::cli::{self, Cli, Command, Settings};
use vestibule::control::{self, StartError};
use vestibule::sys;

/// Ten thousand connections come and go, each with a few small allocations on the worker that has it. What they leave
/// behind goes back to the system within seconds; glibc's allocator kept 50 MiB of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    warn_of_variables();
    control::run(&|| settings.load()).map_err(|error| told(settings, error))
}

fn check(settings: &Settings) -> Result<(), String> {
    sys::files::raise_limit();
    let warnings = warn_of_variables();
    let (config, faults) = settings.survey();
    let page =
        control::check::check(&config, faults, warnings).map_err(|error| told(settings, error))?;
    print!("{page}");
    Ok(())
}

/// Returns how many there are.
fn warn_of_variables() -> usize {
    let warnings = cli::unknown_variables();
    for warning in &warnings {
        eprintln!("vestibule: warning: {warning}");
    }
    warnings.len()
}

fn told(settings: &Settings, error: StartError) -> String {
    match error {
        StartError::Config(error) => settings.as_given(error.0).to_string(),
        error => error.to_string(),
    }
}
