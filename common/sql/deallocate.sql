DEALLOCATE {identifier};
