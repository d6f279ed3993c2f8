"""Matrices that lie in memory in every way: name -> view(rows, columns), over base(*shape), which makes an array."""


def distinct(base) -> dict:
    """Views whose elements do not share memory, as an output needs them."""
    return {
        "contiguous": base,
        "transposed": lambda rows, columns: base(columns, rows).t(),
        "columns of a wider one": lambda rows, columns: base(rows, columns + 64)[:, 32 : 32 + columns],
        "odd columns of a wider one": lambda rows, columns: base(rows, columns + 9)[:, 3 : 3 + columns],
        "rows of a taller one": lambda rows, columns: base(rows + 5, columns)[5:],
        "every second row": lambda rows, columns: base(2 * rows, columns)[::2],
        "every second column": lambda rows, columns: base(rows, 2 * columns)[:, ::2],
        "every third of both": lambda rows, columns: base(3 * rows, 3 * columns)[::3, ::3],
        "rows of a transposed one": lambda rows, columns: base(columns, rows + 3).t()[3:],
        "a slice of three dimensions": lambda rows, columns: base(4, rows, columns)[2],
        "offset by one element": lambda rows, columns: base(rows * columns + 1)[1:].view(rows, columns),
    }


def repeated(base) -> dict:
    return {
        "one row, repeated": lambda rows, columns: base(1, columns).expand(rows, columns),
        "one column, repeated": lambda rows, columns: base(rows, 1).expand(rows, columns),
        "one element, repeated": lambda rows, columns: base(1, 1).fill_(2).expand(rows, columns),
    }
