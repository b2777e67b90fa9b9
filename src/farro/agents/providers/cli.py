"""The cli provider: a command that reads the prompt from standard input and writes the answer to standard output."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from farro.agents.providers.command import CommandCall, CommandProvider, ProviderCommand, prompt_text
from farro.agents.providers.port import Answer, TroubleKind
from farro.agents.providers.programs import ALWAYS, LIMIT, ProgramOutput, end_of, named
from farro.agents.providers.registry import Place
from farro.config.settings import ProviderSettings
from farro.errors import InputError
from farro.host import fs
from farro.lazy_dataclass import dataclass
from farro.roles import money

SIGNALLED = 128  # an exit code above it: a signal ended the program


def make(name: str, settings: ProviderSettings, place: Place) -> CommandProvider:
    if settings.program is not None:
        from farro.agents.providers.program import make as make_program  # here: other commands need none of it

        return make_program(name, settings, place)
    if settings.command is None:
        raise InputError(f"providers.{name}.command: is required: the command that answers, as a list of words")
    return CliProvider(name=name, settings=settings, environ=place.environ)


@dataclass(kw_only=True)
class CliProvider(CommandProvider):
    """Any command that answers."""

    def ask(self, call: CommandCall) -> Answer:
        request = call.request
        # JSON is not worth watching; a program that answers in JSON reports its progress on stderr.
        read_along = 0 if self.settings.answer_field is None else 1
        with self.confined(call) as confined, ProgramOutput(call.folder, read_along=read_along) as output:

            def watch() -> None:
                if request.partial is not None:
                    output.pass_on(request.partial)

            command = self._command(call, confined.tmp)
            code = self.run(call, command, confined=confined, output=output, watch=watch)
            text, said = output.texts()
            self.check_violation(confined, said if code != 0 else "")
            if code != 0:
                # Some programs, such as claude, print their error to stdout: it is the only explanation a person gets.
                hit = confined.hit()
                why = f": {hit}" if hit else _last(said) or _last(self._said(text))
                again = code not in self.settings.fatal_exit_codes
                kind: TroubleKind = "cut" if code > SIGNALLED else "failed"
                raise self.trouble(f"exit code {code}{why}", kind=kind, retryable=again)
            return self._read(text)

    def _command(self, call: CommandCall, tmp: str) -> ProviderCommand:
        assert self.settings.command is not None, "`make` asks for it"
        stdin = f"{call.folder}/prompt.txt"
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(stdin)
        fs.create(stdin, prompt_text(call.request).encode("utf-8", "replace"))
        # No secret of the worker that was not named for it.
        own = {"HOME": tmp, **named(self.environ, (*ALWAYS, *self.settings.environment))}
        return ProviderCommand(
            words=tuple(word.replace("{model}", call.request.model or "") for word in self.settings.command),
            env={**own, **call.request.env, "FARRO_ROOT": call.root},
            cwd=tmp if self.settings.workspace == "temp" else call.root,
            stdin=stdin,
            most_output=LIMIT,
        )

    def _said(self, text: str) -> str:
        """Return the message in the program's output, even if it is not an answer."""
        with contextlib.suppress(ValueError, RecursionError):
            found = _at(json.loads(text), self.settings.answer_field or "")
            return found if isinstance(found, str) else text
        return text

    def _read(self, text: str) -> Answer:
        field, cost_field = self.settings.answer_field, self.settings.cost_field
        if field is None:
            return Answer(text=text)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            message = f"its output is not JSON, and answer_field wants {field} of it{_last(text)}"
            raise self.trouble(message, retryable=True) from None
        found = _at(data, field)
        if not isinstance(found, str):
            raise self.trouble(f"its output has no text at {field} (answer_field){_last(text)}", retryable=True)
        cost = None if cost_field is None else _at(data, cost_field)
        return Answer(text=found, cost_usd=money.reported_cost(cost))


def _last(text: str) -> str:
    said = end_of(" ".join(text.split()), 300).strip()
    return f": {said}" if said else ""


def _at(data: Any, path: str) -> Any:
    """Return a nested member by its path: `result` or `usage.cost`."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data
