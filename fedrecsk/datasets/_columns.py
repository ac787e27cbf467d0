"""The roles of columns, and the types of their texts."""

from collections.abc import Mapping

import numpy as np

ROLES = ("user", "item", "rating", "timestamp")

# In order of preference, compared in lower case without punctuation.
_USUAL_NAMES = {
    "user": "user userid uid userno users customer customerid reviewerid member memberid visitorid",
    "item": "item itemid iid itemno items movie movieid film filmid product productid asin book "
    "bookid isbn song songid track trackid artist artistid business businessid anime animeid",
    "rating": "rating ratings score stars preference overall grade value",
    "timestamp": "timestamp ts time unixtime unixreviewtime datetime date ratedat reviewtime",
}
_USUAL_NAMES = {role: names.split() for role, names in _USUAL_NAMES.items()}
_ALL_USUAL_NAMES = frozenset().union(*_USUAL_NAMES.values())

# Tables of interactions have a few columns, matrices of users by items have hundreds.
_WIDE = 15
MATRIX = (
    " If it is a matrix of users by items, with one column per item, turn it into one row per "
    "rating first, for example with pandas.DataFrame.stack."
)

_ZERO, _NINE, _MINUS = ord("0"), ord("9"), ord("-")
_NUMBER_CHARACTERS = np.array([0, *map(ord, "0123456789+-.eE")], dtype=np.uint32)


def looks_like_header(first: list[str], second: list[str] | None) -> bool:
    """Whether `first` names columns, rather than being a row like `second`."""
    if any(_is_number(field) for field in first):
        return False
    if any(_plain(field) in _ALL_USUAL_NAMES for field in first):
        return True
    return second is not None and any(_is_number(field) for field in second)


def assign_roles(
    columns: Mapping[str, str | int | None] | None,
    names: list[str] | None,
    width: int,
    source: str,
) -> dict[str, int]:
    """Map each role to the position of its column; roles without a column are left out.

    Roles that `columns` does not mention are guessed from the header `names`, or from the
    usual order if there is no header (`names` None).
    """
    columns = dict(columns or {})
    if unknown := [role for role in columns if role not in ROLES]:
        raise ValueError(f"columns has the unknown role {unknown[0]!r}; the roles are {ROLES}.")

    found = {
        role: _position(role, where, names, width, source)
        for role, where in columns.items()
        if where is not None
    }
    for role in ROLES:
        if role not in columns:
            position = _guess(role, names, width, taken=found.values())
            if position is not None:
                found[role] = position

    for role in ("user", "item"):
        if role not in found:
            seen = f"the columns {listed(names)}" if names else f"{width} column(s) and no header"
            free = [place for place in range(width) if place not in found.values()] or [0]
            raise ValueError(
                f"{source}: no column found for the {role}; it has {seen}. "
                f"Say which it is, for example columns={{{role!r}: "
                f"{names[free[0]] if names else free[0]!r}}}.{MATRIX if width > _WIDE else ''}"
            )
    if width > _WIDE and names is None and not columns:
        raise ValueError(
            f"{source} has {width} columns and no header, so which of them are the user, the item "
            f"and the rating? Say so with columns={{'user': 0, 'item': 1, ...}}.{MATRIX}"
        )
    if len(set(found.values())) < len(found):
        raise ValueError(f"{source}: columns gives one column two roles: {found}.")
    if names:
        _check_repeated(found, columns, names, source)
    return {role: found[role] for role in ROLES if role in found}


def _check_repeated(found, columns, names, source):
    """Raise if a column was chosen by a name that the header has more than once."""
    for role, position in found.items():
        name = names[position]
        if names.count(name) > 1 and not isinstance(columns.get(role), int | np.integer):
            places = [place for place, other in enumerate(names) if other == name]
            raise ValueError(
                f"{source}: the header names {len(places)} columns {name!r} (positions "
                f"{', '.join(map(str, places))}). Say by position which one is the {role}: "
                f"columns={{{role!r}: {position}}}."
            )


def _position(role, where, names, width, source):
    if isinstance(where, str):
        if names is None:
            raise ValueError(
                f"{source}: columns names {where!r} as the {role}, but the file has no header. "
                "Give a position (0 is the first column), or header=True if line 1 is one."
            )
        if where not in names:
            raise ValueError(
                f"{source}: no column {where!r} for the {role}; the header has {listed(names)}."
            )
        return names.index(where)
    if isinstance(where, bool) or not isinstance(where, (int, np.integer)):
        raise TypeError(f"columns[{role!r}] must be a name, a position or None, got {where!r}.")
    if not 0 <= where < width:
        raise ValueError(
            f"{source}: no column {where} for the {role}; the file has {width} columns, "
            f"0 to {width - 1}."
        )
    return int(where)


def _guess(role, names, width, taken):
    if names is None:
        candidates = [ROLES.index(role)]
    else:
        plain = [_plain(name) for name in names]
        candidates = [plain.index(usual) for usual in _USUAL_NAMES[role] if usual in plain]
    return next((c for c in candidates if c < width and c not in taken), None)


def listed(names: list[str] | list[int]) -> str:
    """List names or positions for a message: all of them, or the first ten of many."""
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _plain(name: str) -> str:
    """Reduce `User_ID`, `userId` and RecBole's `user_id:token` to `userid`."""
    name = name.split(":")[0]
    return "".join(character for character in name.lower() if character.isalnum())


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def has_decimal_comma(text: str) -> bool:
    """Whether the text is a number such as 3,5."""
    return "," in text and "." not in text and _is_number(text.replace(",", ".", 1))


def typed(chunks: list[np.ndarray]) -> np.ndarray:
    """Join chunks of texts as int64 if all are whole numbers, else as float64, else as str.

    A chunk of int64 stands for the texts of these numbers.

    A column becomes numbers only if no two different texts become the same number: `007` and
    `7` (or `1.10` and `1.1`) may be two items, so such a column stays text.
    """
    if all(chunk.dtype == np.int64 or _are_whole_numbers(chunk) for chunk in chunks):
        return np.concatenate([chunk.astype(np.int64) for chunk in chunks])
    chunks = [chunk.astype(str) if chunk.dtype == np.int64 else chunk for chunk in chunks]
    if all(_are_numbers(chunk) for chunk in chunks):
        texts = np.concatenate(chunks)
        numbers = texts.astype(np.float64)
        if np.isfinite(numbers).all() and len(np.unique(numbers)) == len(np.unique(texts)):
            return numbers
    # Objects: one long text must not make every row as wide as itself. Each text is kept once.
    known: dict[str, str] = {}
    objects = np.empty(sum(map(len, chunks)), dtype=object)
    objects[:] = [known.setdefault(text, text) for chunk in chunks for text in chunk.tolist()]
    return objects


def numbers(chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the chunk's texts as float64, and a mask of those that are not finite numbers."""
    try:
        values = chunk.astype(np.float64)
    except ValueError:
        values = np.array([float(text) if _is_number(text) else np.nan for text in chunk])
    return values, ~np.isfinite(values)


def _characters(texts: np.ndarray) -> np.ndarray:
    """View texts as code points, one row per text, padded with zeros."""
    return np.ascontiguousarray(texts).view(np.uint32).reshape(len(texts), -1)


def _are_whole_numbers(texts: np.ndarray) -> bool:
    """Whether every text is a whole number as int64 would print it."""
    characters = _characters(texts)
    negative = characters[:, 0] == _MINUS
    digits = characters
    if negative.any():
        digits = characters.copy()
        digits[negative, :-1], digits[negative, -1] = characters[negative, 1:], 0
    if not (((digits >= _ZERO) & (digits <= _NINE)) | (digits == 0)).all():
        return False
    length = (digits != 0).sum(axis=1)
    # Eighteen digits always fit into int64; nineteen may not.
    if length.min() == 0 or length.max() > 18:
        return False
    return not ((digits[:, 0] == _ZERO) & ((length > 1) | negative)).any()


def _are_numbers(texts: np.ndarray) -> bool:
    """Whether every text is a plain decimal number (no `nan`, `inf` or `1_000`)."""
    if not np.isin(_characters(texts), _NUMBER_CHARACTERS).all():
        return False
    return all(map(_is_number, np.unique(texts)))
