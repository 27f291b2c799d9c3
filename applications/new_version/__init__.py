"""A new version of an application, tried on rewound history, and switched to at one cut."""
