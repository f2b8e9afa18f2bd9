"""zllm tokenize: text to a model's token ids, without loading its weights."""

from __future__ import annotations

import argparse
import json

from zllm.bin.model_flags import add_model, read_bytes
from zllm.errors import ZllmError
from zllm.model import Model
from zllm.text.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--text", help="the text itself")
    parser.add_argument(
        "--text-file",
        metavar="F",
        help="a file of text, - for standard input; bytes that are not UTF-8 count as U+FFFD",
    )
    parser.add_argument(
        "--no-special",
        action="store_true",
        help="take the texts of control tokens as plain text, as in a chat message",
    )
    parser.add_argument("--pieces", action="store_true", help="show the text of each token")
    parser.add_argument("--json", action="store_true", help='write {"ids": […]}')


def run(args: argparse.Namespace) -> int:
    text = _text(args)
    tokenizer = Model(args.model).tokenizer
    ids = tokenizer.encode(text, special=not args.no_special)
    if args.json:
        answer: dict[str, object] = {"ids": ids}
        if args.pieces:
            answer["pieces"] = [_piece(tokenizer, id) for id in ids]
        print(json.dumps(answer))
    elif args.pieces:
        for id in ids:
            print(f"{id:>7}  {_visible(_piece(tokenizer, id))}")
    else:
        print(*ids)
    return 0


def _text(args: argparse.Namespace) -> str | bytes:
    if (args.text is None) == (args.text_file is None):
        raise ZllmError("give either --text or --text-file")
    if args.text is not None:
        text: str = args.text
        return text
    return read_bytes(args.text_file, "--text-file")


def _piece(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.token_bytes(id).decode("utf-8", "backslashreplace")


def _visible(piece: str) -> str:
    """In quotes, on one line; escapes stand for what does not print."""
    return "'" + "".join(c if c.isprintable() else repr(c)[1:-1] for c in piece) + "'"
