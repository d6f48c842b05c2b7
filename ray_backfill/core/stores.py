"""Opens what a URI names, for images and for tables of vectors alike."""

from urllib.parse import parse_qsl, unquote, urlencode

import pyarrow as pa
from pyarrow import fs


def open_system(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of ``scheme://bucket/path?options``, and the path in it, which starts with the bucket.

    Options are those of pyarrow, and ``anonymous=true`` for public buckets.

    Raises:
        OSError, pyarrow.ArrowException, NotImplementedError: as pyarrow does.
    """
    base, _, query = uri.partition("?")
    scheme, _, place = base.partition("://")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if options.pop("anonymous", "false").lower() == "true":
        if scheme == "s3":  # pyarrow's URIs have no such option
            region = options.pop("region", None) or fs.resolve_s3_region(place.partition("/")[0])
            try:
                return fs.S3FileSystem(anonymous=True, region=region, **options), unquote(place).rstrip("/")
            except TypeError as error:  # an option of another name
                raise pa.ArrowInvalid(str(error)) from error
        place = f"anonymous@{place}"
    system, path = fs.FileSystem.from_uri(f"{scheme}://{place}" + (f"?{urlencode(options)}" if options else ""))
    return system, path.rstrip("/") or path
