"""Results in a notebook: tables as HTML, and as a DataFrame of pandas."""

from collections.abc import Mapping, Sequence
from typing import Any

from tercet.reporting.html import environment
from tercet.reporting.table_formats import Table


def tables_html(tables: Sequence[Table], text: str = "", note: str = "") -> str:
    """Tables with a text before and a note after them, in the fonts and colors of the notebook."""
    return environment().get_template("notebook.html.j2").render(tables=tables, text=text, note=note)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A DataFrame of these rows. pandas is imported only here."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ValueError("to_pandas needs a package: pip install pandas") from error
    return pd.DataFrame(list(rows))
