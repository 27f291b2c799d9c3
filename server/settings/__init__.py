"""The settings of a server: their declarations and their sources."""

from .declared import SettingDeclaration, check_name, declared, named_setting
from .loading import FILE_VARIABLE, OTHERS, LoadedSettings, Setting, Source, load_settings, parse_assignments

__all__ = [
    "FILE_VARIABLE",
    "OTHERS",
    "LoadedSettings",
    "Setting",
    "SettingDeclaration",
    "Source",
    "check_name",
    "declared",
    "load_settings",
    "named_setting",
    "parse_assignments",
]
