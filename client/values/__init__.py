"""Values as rows of a schema, on whole columns of Arrow. Pure: nothing here waits or asks."""
