"""The command line: everything a person does with Millrace without writing a program."""
