"""The common part of all verbs: running, reporting and ending. Help does not wait for imports."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from bitfront.printing.talk import talk
from search.errors import BitfrontError, DeclarationError, RunError
from studies import interrupts, outputs

if TYPE_CHECKING:
    from studies.judging.search_events import SearchEvents

Verb = TypeVar("Verb", bound=Callable[..., None])


def verb(function: Verb) -> Verb:
    """Let the errors of a command become one message and an exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with interrupts.handle_interrupts():
                function(*args, **kwargs)
                if sys.stdout is not None:
                    sys.stdout.flush()  # where nobody handles it any more, a full disk would be told by a traceback
        except KeyboardInterrupt as stop:  # its texts say how to continue
            _print_error("interrupted")
            _print_ways(stop.args)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            outputs.give_up()  # whoever read it has enough
            raise typer.Exit(1) from None
        except (BitfrontError, OSError) as error:
            outputs.give_up()
            _print_error(outputs.error_text(error), "error: ")
            raise typer.Exit(outputs.exit_code(error)) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except MemoryError:
            outputs.give_up()
            _print_error("this needs more memory than this process may have. Nothing of this step was kept.", "error: ")
            raise typer.Exit(1) from None
        except Exception:  # not foreseen, so either a fault of this program or of what it read
            damage = _find_damage(kwargs.get("storage"))
            if not damage:
                raise
            outputs.give_up()
            _print_error(damage, "error: ")
            raise typer.Exit(2) from None

    return run  # type: ignore[return-value]


def _find_damage(storage: str | Sequence[str] | None) -> str:
    """What is damaged in the database that a verb was given, in a sentence; empty if nothing is, or there is none."""
    from studies.store.store import Store, default_url

    url = storage if isinstance(storage, str) else next(iter(storage or ()), default_url())
    try:
        with Store.open(url, write=False) as store:
            return store.database.find_damage()
    except (BitfrontError, OSError):
        return ""


def _print_error(text: str, kind: str = "") -> None:
    """One message on stderr, its first word coloured where a terminal has colours."""
    from bitfront.printing.output import print_error

    print_error(text, kind)


def _print_ways(texts: Sequence[str]) -> None:
    """How to continue, on stderr; such a line has a command, so it is not broken."""
    from bitfront.printing.output import err

    for text in texts:
        err.print(text, markup=False, soft_wrap=True)


@contextmanager
def progress_for(quiet: bool) -> Iterator[SearchEvents]:
    """What a command tells while it runs: to the terminal or a pipe, and to the log file that was asked for.

    Raises:
        ConfigError: the log file cannot be written.
    """
    from studies.events import Quiet

    with ExitStack() as stack:
        shown: SearchEvents = Quiet()
        if not quiet:
            from bitfront.printing.output import err, is_screen
            from studies.show.progress_display import Display, Lines

            verbose = talk().verbose
            if is_screen(err):
                shown = stack.enter_context(Display(err, verbose=verbose))
            else:
                shown = stack.enter_context(Lines(err, verbose=verbose))
        path = talk().log_file
        if path is not None:
            from studies.show.log_file import Logged

            shown = stack.enter_context(Logged(shown, path))
        yield shown


@contextmanager
def resumable(study: str, storage: str | None, verb: str = "resume", more: Sequence[str] = ()) -> Iterator[None]:
    """Say how to continue a run that is interrupted or cannot go on.

    Args:
        verb: that continues it.
        more: options to repeat, ready for the shell.
    """

    from studies.judging.study_lookup import exists
    from studies.run.stop import UnreachableLimitError
    from studies.store import suggestions

    way = f"go on with: {suggestions.command(verb, study, *more, storage=storage)}"
    try:
        yield
    except KeyboardInterrupt:
        if exists(study, storage=storage):
            raise KeyboardInterrupt(way) from None
        raise
    except (BrokenPipeError, DeclarationError, UnreachableLimitError):
        raise
    except (RunError, OSError) as error:
        if not exists(study, storage=storage):
            raise
        raise RunError(f"{outputs.error_text(error)}\n{way}") from error
